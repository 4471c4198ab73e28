#include "sim/check.h"

#include <stdexcept>
#include <string>

namespace stepsim {

void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition);
}

}  // namespace stepsim
