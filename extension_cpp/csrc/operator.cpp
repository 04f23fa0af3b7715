// Lets Python read the lines of shapes (extension_cpp/_loader.py).
#include "operator.h"

extern "C" __attribute__((visibility("default"))) const char* extension_cpp_operators() {
  static const std::string text = extension_cpp::Operator::describe_all();
  return text.c_str();
}
