// Modelled work of a graph file <-> OpWork, with the checks that keep every later product finite. Knows no op.
#pragma once

#include <optional>

#include "sim/op_work.h"
#include "traces/graph_source.h"

namespace stepsim {

namespace graph_file {
class Op;
}

// The work of the op's `work` field; none if it is not set or false.
std::optional<OpWork> work_of(const graph_file::Op& op, const FieldPath& path, const GraphSource& source);

// The class of a given duration.
Given::Class given_class(const graph_file::Op& op, const FieldPath& path, const GraphSource& source);

// Sets the work field, or only the class for Given.
void set_work(const OpWork& work, graph_file::Op& op);

}  // namespace stepsim
