// Exists for its precompiled headers: see CMakeLists.txt.
