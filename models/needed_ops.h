// Leaves out of a template what nothing needs: backward ops whose results end nowhere, then slots that no op uses. Where weights are not
// trained, what was saved for their gradients is then read by no backward op, so it is not saved.
#pragma once

#include "models/layer_template.h"

namespace stepsim {

// Kept are ops from which a weight's gradient, a shared gradient or (if `input_gradient`) the gradient of the layer's input is made.
// Without it the template has none.
void drop_unneeded_backward(LayerTemplate& layer, bool input_gradient);

}  // namespace stepsim
