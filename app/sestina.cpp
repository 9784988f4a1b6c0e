#include "app/program.hpp"

int main(int argc, char** argv) { return sestina::run_program(argc, argv); }
