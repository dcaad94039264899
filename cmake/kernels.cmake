# Kernel templates and model pages are embedded in the binary; the CPU kernels are also compiled into it, once per feature level.
file(GLOB lg_model_files CONFIGURE_DEPENDS models/*.lg)
file(GLOB lg_kernel_files CONFIGURE_DEPENDS kernels/cpu/*.h kernels/cpu/*.c)
lg_embed(lg_lang lg_models ${lg_model_files})
lg_embed(lg_emit lg_kernels_cpu ${lg_kernel_files})
