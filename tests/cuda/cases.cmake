# The checks of device code: cuda_check runs on a GPU (scripts/test-gpu); without one it says so and is skipped.
file(GLOB lg_cuda_checks CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/*.c)
list(FILTER lg_cuda_checks EXCLUDE REGEX "/(values|programs|times).c$")
add_executable(cuda_check ${lg_cuda_checks})
target_link_libraries(cuda_check PRIVATE lg_backend)
target_include_directories(cuda_check PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/cuda)
add_test(NAME cuda.check COMMAND cuda_check WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(cuda.check PROPERTIES LABELS "cuda" SKIP_RETURN_CODE 77 TIMEOUT 600)

# Compiled programs: value by value against the CPU's (scripts/test-gpu).
add_executable(cuda_values tests/cuda/values.c tests/e2e/golden.c)
target_link_libraries(cuda_values PRIVATE lg_lora m)
target_include_directories(cuda_values PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(cuda_values PRIVATE LG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")

add_executable(cuda_times tests/cuda/times.c tests/e2e/golden.c)
target_link_libraries(cuda_times PRIVATE lg_lora)
target_include_directories(cuda_times PRIVATE ${CMAKE_SOURCE_DIR})

add_executable(cuda_programs tests/cuda/programs.c)
target_link_libraries(cuda_programs PRIVATE lg_backend PkgConfig::CMOCKA)
target_include_directories(cuda_programs PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(cuda_programs PRIVATE LG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" LG_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
add_test(NAME cuda.programs COMMAND cuda_programs)
set_tests_properties(cuda.programs PROPERTIES LABELS "cuda;numbers" TIMEOUT 300)
add_test(NAME cuda.programs_long COMMAND cuda_programs long)
set_tests_properties(cuda.programs_long PROPERTIES LABELS "cuda;long" TIMEOUT 1800)
