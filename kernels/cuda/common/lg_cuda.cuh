// What all device code shares: types, bf16 bits, mma, cp.async, dependent launches. NVRTC finds no headers of CUDA's at a user's, so none is included.
#ifndef LG_CUDA_CUH
#define LG_CUDA_CUH

typedef unsigned short bf16; // bits
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define LG_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define LG_KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define LG_IN __device__ __forceinline__ // members
#define LG_DEV static LG_IN

LG_DEV float lg_f32(bf16 v) { return __uint_as_float((u32)v << 16); }

// To nearest even.
LG_DEV bf16 lg_bf16(float v) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
}
LG_DEV u32 lg_bf16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
LG_DEV float lg_low(u32 pair) { return __uint_as_float(pair << 16); }
LG_DEV float lg_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// c += A B for one m16n8k16 step. Lane = 4 g + t: c[0], c[1] are row g, columns 2t and 2t + 1; c[2], c[3] the same of row g + 8.
//
// Which of the step's 16 k a register holds is ours to choose, as long as both operands agree: lane t holds k = 4t .. 4t + 3, so that a row's part of a
// step is one load of 8 bytes. a_low, a_high: rows g and g + 8 of A; b: column g of B.
LG_DEV void lg_mma(float (&c)[4], uint2 a_low, uint2 a_high, uint2 b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a_low.x), "r"(a_high.x), "r"(a_low.y), "r"(a_high.y), "r"(b.x), "r"(b.y));
}

// ---- copies to shared memory that the thread does not wait for ----

LG_DEV u32 lg_shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes; fewer than 16 valid ones: the rest is zeros.
LG_DEV void lg_copy16(u32 to, const void *from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid) : "memory");
}
LG_DEV void lg_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> LG_DEV void lg_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// ---- fetching ahead into the second-level cache: also of what an earlier kernel still writes, since it writes there ----

LG_DEV void lg_fetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p))); }
// [from, from + bytes), by `threads` threads together.
LG_DEV void lg_fetch_span(u64 from, i64 bytes, int thread, int threads) {
    for (i64 at = (i64)thread * 128; at < bytes; at += (i64)threads * 128)
        lg_fetch((const char *)from + at);
}

// ---- dependent launches ----

// Nothing that an earlier kernel of the step writes may be touched before it.
LG_DEV void lg_wait_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start (and fetch its weights) from here on.
LG_DEV void lg_let_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
