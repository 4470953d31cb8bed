// A look at whether products come out right on this machine.
#pragma once

namespace octavo {

// Multiplies with each kind of matrix, by one thread, and compares with plain loops. In less than a millisecond.
bool products_are_right();

}  // namespace octavo
