# stepsim_embed(target symbol files...): compiles data files into `target` as
#   std::span<const stepsim::EmbeddedFile> stepsim::symbol();
# declared by whoever uses it. File order: as listed.
function(stepsim_embed target symbol)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cc)
  set(inputs)
  foreach(file IN LISTS ARGN)
    get_filename_component(absolute ${file} ABSOLUTE)
    list(APPEND inputs ${absolute})
  endforeach()
  string(JOIN "," joined ${inputs})
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DSYMBOL=${symbol} -DOUT=${out} -DROOT=${PROJECT_SOURCE_DIR} "-DFILES=${joined}"
            -P ${PROJECT_SOURCE_DIR}/cmake/write_embedded.cmake
    DEPENDS ${inputs} ${PROJECT_SOURCE_DIR}/cmake/write_embedded.cmake VERBATIM)
  target_sources(${target} PRIVATE ${out})
  set_source_files_properties(${out} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
