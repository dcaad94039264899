add_test(NAME cli.forms COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/cli/test_cli.py $<TARGET_FILE:ligature> ${CMAKE_SOURCE_DIR}/tests/data)
set_tests_properties(cli.forms PROPERTIES TIMEOUT 600 LABELS "e2e")
add_test(NAME cli.shell COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/cli/test_shell.py $<TARGET_FILE:ligature> ${CMAKE_SOURCE_DIR}/tests/data)
set_tests_properties(cli.shell PROPERTIES TIMEOUT 300 LABELS "e2e")
