# Files of the repository that the binary carries: model pages and kernel templates, as byte arrays with their names.
function(lg_embed target symbol)
  set(out ${CMAKE_BINARY_DIR}/generated/${symbol}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/embed.py ${symbol} ${out} ${ARGN}
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/tools/embed.py
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
