// exp and erf in fp32 as plain arithmetic, so that loops over them become vector instructions: libm's functions are called one by one, and
// their vector forms give other bits than their scalar ones.
//
// They are always inlined: loops that call them are not vectorised otherwise, and g++ takes them to be too large for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace stepsim::cpu {

// e^x, for x up to 88, to about 1e-7 of itself; below -87 e^-87 (1.6e-38). Polynomial and reduction: Cephes expf (netlib.org/cephes
// single/expf.c).
[[gnu::always_inline]] inline float exp_of(float x) {
  x = x < -87.0F ? -87.0F : x;
  constexpr float kRounds = 12582912.0F;                                // 1.5 * 2^23: adding it rounds to a whole number
  const float powers = (x * 1.44269504088896341F + kRounds) - kRounds;  // of 2
  const float rest = (x - powers * 0.693359375F) - powers * -2.12194440e-4F;
  float value = 1.9875691500e-4F;
  value = value * rest + 1.3981999507e-3F;
  value = value * rest + 8.3334519073e-3F;
  value = value * rest + 4.1665795894e-2F;
  value = value * rest + 1.6666665459e-1F;
  value = value * rest + 5.0000001201e-1F;
  value = value * (rest * rest) + rest + 1.0F;
  return value * std::bit_cast<float>((static_cast<std::int32_t>(powers) + 127) << 23);
}

// 1 - erf(x) for x not below 0, to 2e-7, and to 6e-7 of itself; `gauss` is e^(-x^2). With t = 1 / (1 + 0.4 x), e^(x^2) (1 - erf(x)) / t is
// nearly a polynomial in v = 1 - t: here the one of degree 9 that meets it in the Chebyshev nodes of x from 0 to 9.4, within 1.5e-8. (The
// form is that of Abramowitz and Stegun, formula 7.1.26, which is 1.5e-7 off; in v little cancels where x is small.)
[[gnu::always_inline]] inline float erf_complement_of(float x, float gauss) {
  const float t = 1.0F / (1.0F + 0.4F * x), v = 0.4F * x * t;
  float sum = 3.449023044e-02F;
  sum = sum * v - 8.602153271e-02F;
  sum = sum * v + 6.813829699e-03F;
  sum = sum * v + 9.234917183e-02F;
  sum = sum * v + 1.254184725e-01F;
  sum = sum * v - 2.675716721e-01F;
  sum = sum * v - 4.669214960e-01F;
  sum = sum * v + 1.608113470e+00F;
  sum = sum * v - 1.820948159e+00F;
  return (sum * v + 1.0F) * t * gauss;
}

// erf(x) to 3e-7.
[[gnu::always_inline]] inline float erf_of(float x, float gauss) { return std::copysign(1.0F - erf_complement_of(std::fabs(x), gauss), x); }

}  // namespace stepsim::cpu
