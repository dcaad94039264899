# Kernel templates and model pages are embedded in the binary; the CPU kernels are also compiled into it, once per feature level.
file(GLOB lg_model_files CONFIGURE_DEPENDS models/*.lg)
file(GLOB lg_kernel_files CONFIGURE_DEPENDS kernels/cpu/*.h kernels/cpu/*.c)
lg_embed(lg_lang lg_models ${lg_model_files})
lg_embed(lg_emit lg_kernels_cpu ${lg_kernel_files})

# kernels/cpu/table.c: one object a feature level, always optimised; under sanitizers as far as they bear.
if(LG_SANITIZE)
  set(lg_kernel_flags ${lg_kernel_sanitize})
else()
  set(lg_kernel_flags -O3)
endif()
function(lg_kernel_level level)
  add_library(lg_kernels_${level} OBJECT kernels/cpu/table.c)
  target_link_libraries(lg_kernels_${level} PRIVATE lg_options)
  target_compile_options(lg_kernels_${level} PRIVATE ${lg_kernel_flags} ${ARGN})
  target_sources(lg_backend PRIVATE $<TARGET_OBJECTS:lg_kernels_${level}>)
endfunction()
lg_kernel_level(generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  lg_kernel_level(avx2 -mavx2 -mfma -mf16c -DLGP_LEVEL_AVX2)
  target_compile_definitions(lg_backend PUBLIC LGP_HAS_AVX2)
  target_compile_definitions(lg_kernels_avx2 PRIVATE LGP_HAS_AVX2)
  set(lg_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -DLGP_LEVEL_AVX2 -DLGP_LEVEL_AVX512)
  set(lg_avx512bf16 ${lg_avx512} -mavx512bf16 -DLGP_LEVEL_BF16)
  lg_kernel_level(avx512 ${lg_avx512})
  lg_kernel_level(avx512bf16 ${lg_avx512bf16})
  lg_kernel_level(amx ${lg_avx512bf16} -mamx-tile -mamx-bf16 -DLGP_LEVEL_AMX)
  foreach(level avx512 avx512bf16 amx)
    target_compile_definitions(lg_kernels_${level} PRIVATE LGP_HAS_AVX2)
  endforeach()
endif()

# Device code: every module with its kernels, as text (src/backend/cuda/modules.h); it is compiled where it runs.
file(GLOB_RECURSE lg_cuda_files CONFIGURE_DEPENDS kernels/cuda/*)
set(lg_cuda_table ${CMAKE_BINARY_DIR}/generated/cuda_table.c)
add_custom_command(OUTPUT ${lg_cuda_table}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/cuda_table.py ${lg_cuda_table}
  DEPENDS ${lg_cuda_files} ${CMAKE_SOURCE_DIR}/tools/cuda_table.py
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM)
target_sources(lg_backend PRIVATE ${lg_cuda_table})
