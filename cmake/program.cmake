# The command-line program, and the C library that other programs link.
file(GLOB lg_cli_sources CONFIGURE_DEPENDS src/cli/*.c)
add_executable(ligature ${lg_cli_sources})
target_link_libraries(ligature PRIVATE lg_api)

add_library(ligature_shared SHARED ${CMAKE_BINARY_DIR}/empty_shared.c)
file(WRITE ${CMAKE_BINARY_DIR}/empty_shared.c "typedef int lg_empty_shared;\n")
set_target_properties(ligature_shared PROPERTIES OUTPUT_NAME ligature)
target_link_libraries(ligature_shared PRIVATE -Wl,--whole-archive lg_api lg_base -Wl,--no-whole-archive -Wl,--exclude-libs,libjansson.a)
install(TARGETS ligature ligature_shared)
install(FILES include/ligature.h DESTINATION include)

# The yardstick of bench/: this machine's read bandwidth.
add_executable(bandwidth EXCLUDE_FROM_ALL bench/bandwidth.c)
target_compile_options(bandwidth PRIVATE -O3 -march=native)
target_link_libraries(bandwidth PRIVATE Threads::Threads)
