// What operator.h and notation.h declare, for the CUDA library too: it shares no symbols with the CPU library.
#include "../notation.cpp"
#include "../operator.cpp"
