# tests/unit/FOLDER/test_X.c: one executable each, linked to its folder's library and what lies below it.
include(CTest)
enable_testing()
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
set(LG_SHARED_DATA "${CMAKE_SOURCE_DIR}/../shared/data" CACHE PATH "The larger test data, used where it is there")

set(LG_SMOLLM2 "${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf" CACHE FILEPATH "The model of the demo, used where it is there")

set(LG_TEST_CACHE "${CMAKE_SOURCE_DIR}/build/test-programs" CACHE PATH "Programs that tests compile, for all presets")

foreach(folder ${LG_FOLDERS} kernels)
  file(GLOB tests CONFIGURE_DEPENDS tests/unit/${folder}/test_*.c)
  foreach(source ${tests})
    get_filename_component(name ${source} NAME_WE)
    set(target ${folder}_${name})
    add_executable(${target} ${source})
    if(TARGET lg_${folder})
      target_link_libraries(${target} PRIVATE lg_${folder})
    else()
      target_link_libraries(${target} PRIVATE lg_api)
    endif()
    target_link_libraries(${target} PRIVATE PkgConfig::CMOCKA)
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
    target_compile_definitions(${target} PRIVATE LG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
      LG_SHARED_DATA="${LG_SHARED_DATA}" LG_SMOLLM2="${LG_SMOLLM2}" LG_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${folder}.${name} COMMAND ${target})
    set(labels unit ${folder})
    if(folder MATCHES "^(backend|engine)$")
      list(APPEND labels threads) # what the thread sanitizer runs
    endif()
    set_tests_properties(${folder}.${name} PROPERTIES LABELS "${labels}" TIMEOUT 1800)
  endforeach()
endforeach()

# tests/cases.cmake files add tests of other kinds (end to end, scripts).
file(GLOB lg_test_cases CONFIGURE_DEPENDS tests/*/cases.cmake fuzz/cases.cmake)
foreach(cases ${lg_test_cases})
  include(${cases})
endforeach()
