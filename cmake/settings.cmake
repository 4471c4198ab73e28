# Compiler settings of every target of the project, through the interface library stepsim_settings.
add_library(stepsim_settings INTERFACE)
target_include_directories(stepsim_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(stepsim_settings INTERFACE
  -Wall -Wextra -Wconversion -Wshadow
  -ffp-contract=off)  # FMA contraction changes results between machines: one fingerprint everywhere
if(STEPSIM_WERROR)
  target_compile_options(stepsim_settings INTERFACE -Werror)
endif()
if(STEPSIM_SANITIZE)
  target_compile_options(stepsim_settings INTERFACE -fsanitize=${STEPSIM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(stepsim_settings INTERFACE -fsanitize=${STEPSIM_SANITIZE})
endif()
if(STEPSIM_COVERAGE)
  target_compile_options(stepsim_settings INTERFACE --coverage)
  target_link_options(stepsim_settings INTERFACE --coverage)
endif()

# Sources of a target are compiled eight at a time, which reads the headers that they share once: a clean build takes a third of the time.
# Files of one folder therefore may not give one name to two things, not even in unnamed namespaces.
function(stepsim_compile_together name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${STEPSIM_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# stepsim_library(NAME folder sources...): a static library of one folder.
function(stepsim_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC stepsim_settings)
  stepsim_compile_together(${name})
endfunction()

# stepsim_proto(TARGET file.proto...): generated code is compiled apart, without our warnings; include it as "<folder>/<file>.pb.h".
function(stepsim_proto target)
  set(out ${PROJECT_BINARY_DIR}/generated)
  set(sources)
  foreach(proto IN LISTS ARGN)
    get_filename_component(absolute ${proto} ABSOLUTE)
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${absolute})
    string(REGEX REPLACE "\\.proto$" "" stem ${relative})
    get_filename_component(folder ${out}/${stem} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${out}/${stem}.pb.cc ${out}/${stem}.pb.h
      COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} --cpp_out=${out} ${absolute}
      DEPENDS ${absolute} VERBATIM)
    list(APPEND sources ${out}/${stem}.pb.cc)
  endforeach()
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} SYSTEM PUBLIC ${out})
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
  if(STEPSIM_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${STEPSIM_SANITIZE})
  endif()
endfunction()
