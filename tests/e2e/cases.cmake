# Reference outputs from elsewhere, for every back end. The larger sets are "long" and are skipped where they are not there.
set(LG_SMOLLM2 "${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf" CACHE FILEPATH
  "SmolLM2-135M-Instruct as a GGUF, for the long tests")

add_executable(e2e_golden tests/e2e/golden_main.c tests/e2e/golden.c)
target_link_libraries(e2e_golden PRIVATE lg_lora)
target_include_directories(e2e_golden PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(e2e_golden PRIVATE LG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
  LG_SHARED_DATA="${LG_SHARED_DATA}" LG_SMOLLM2="${LG_SMOLLM2}"
  LG_TEST_CACHE="${LG_TEST_CACHE}")
# "numbers": long sums over code that the other tests reach too; the sanitizers leave them out.
foreach(backend interp cpu)
  add_test(NAME e2e.golden_${backend} COMMAND e2e_golden ${backend} repo)
  set_tests_properties(e2e.golden_${backend} PROPERTIES LABELS "e2e;numbers" TIMEOUT 1500)
  add_test(NAME e2e.golden_${backend}_made COMMAND e2e_golden ${backend} made)
  set_tests_properties(e2e.golden_${backend}_made PROPERTIES LABELS "e2e" TIMEOUT 1500)
  foreach(data tiny smollm2)
    add_test(NAME e2e.golden_${backend}_${data} COMMAND e2e_golden ${backend} ${data})
    set_tests_properties(e2e.golden_${backend}_${data} PROPERTIES LABELS "e2e;long" TIMEOUT 1200
      SKIP_RETURN_CODE 77)
  endforeach()
endforeach()

add_executable(e2e_golden_mutants tests/e2e/golden_mutants.c tests/e2e/golden.c)
target_link_libraries(e2e_golden_mutants PRIVATE lg_lora PkgConfig::CMOCKA)
target_include_directories(e2e_golden_mutants PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(e2e_golden_mutants PRIVATE LG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
add_test(NAME e2e.golden_mutants COMMAND e2e_golden_mutants)
set_tests_properties(e2e.golden_mutants PROPERTIES LABELS "e2e" TIMEOUT 1800)

add_executable(e2e_touched tests/e2e/touched.c tests/e2e/random_model.c)
target_link_libraries(e2e_touched PRIVATE lg_backend PkgConfig::CMOCKA)
target_include_directories(e2e_touched PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(e2e_touched PRIVATE LG_TEST_CACHE="${LG_TEST_CACHE}")
add_test(NAME e2e.touched COMMAND e2e_touched)
set_tests_properties(e2e.touched PROPERTIES LABELS "e2e" TIMEOUT 120)

add_executable(e2e_differential tests/e2e/differential.c tests/e2e/reading.c tests/e2e/random_model.c)
target_link_libraries(e2e_differential PRIVATE lg_backend PkgConfig::CMOCKA)
target_include_directories(e2e_differential PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(e2e_differential PRIVATE LG_TEST_CACHE="${LG_TEST_CACHE}")
add_test(NAME e2e.differential COMMAND e2e_differential)
set_tests_properties(e2e.differential PROPERTIES LABELS "e2e;numbers" TIMEOUT 1800)
add_test(NAME e2e.differential_long COMMAND e2e_differential long)
set_tests_properties(e2e.differential_long PROPERTIES LABELS "e2e;long" TIMEOUT 2400)

add_test(NAME e2e.task_answers COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/task_answers.py $<TARGET_FILE:ligature> ${LG_SMOLLM2} ${LG_SHARED_DATA}/smollm2)
set_tests_properties(e2e.task_answers PROPERTIES LABELS "e2e;long" TIMEOUT 900 SKIP_RETURN_CODE 77)
