# The documentation's C program, built against the shared library as a user would.
add_executable(docs_embed ${CMAKE_SOURCE_DIR}/docs/embed.c)
target_include_directories(docs_embed PRIVATE ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(docs_embed PRIVATE ligature_shared)
if(LG_SANITIZE)
  target_link_options(docs_embed PRIVATE -fsanitize=${lg_sanitize_list})
endif()
add_test(NAME docs.embed COMMAND docs_embed ${CMAKE_SOURCE_DIR}/tests/data/tiny/models/tiny-qwen3
  ${CMAKE_SOURCE_DIR}/tests/data/tiny/adapters/tiny-qwen3/en-r8-all 1,2,3)
set_tests_properties(docs.embed PROPERTIES LABELS "e2e" PASS_REGULAR_EXPRESSION "base: [0-9 ]+\nadapted: [0-9 ]+" TIMEOUT 120)
add_test(NAME docs.examples COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/docs/test_examples.py $<TARGET_FILE:ligature> ${CMAKE_SOURCE_DIR} ${LG_SMOLLM2})
set_tests_properties(docs.examples PROPERTIES LABELS "e2e" TIMEOUT 1500)
