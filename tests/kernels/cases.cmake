# The kernel checks: one program for checking and timing.
file(GLOB lg_kernel_checks CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/kernels/*.c)
add_executable(kernels_check ${lg_kernel_checks})
target_link_libraries(kernels_check PRIVATE lg_backend)
target_include_directories(kernels_check PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(kernels_check PRIVATE -O2)
add_test(NAME kernels.check COMMAND kernels_check)
set_tests_properties(kernels.check PROPERTIES LABELS "unit;kernels" TIMEOUT 1500)
