// Any bytes as a job file: a job that resolves, or one line of InputError. Anything else (a crash, another exception) is a finding.
#include <cstddef>
#include <cstdint>
#include <string>

#include "schema/read_message.h"
#include "sim/check.h"
#include "tools/job.h"
#include "tools/job.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    stepsim::job::Job job;
    stepsim::read_message(text, "job", job);
    stepsim::JobInput input;
    for (const auto& [path, value] : stepsim::set_fields(job)) {
      STEPSIM_CHECK(stepsim::locate_field(text, "job", path).line > 0);  // what was read stands somewhere
      const bool names_file = path.size() > 5 && value.find('/') != std::string::npos;
      if (!names_file) input.flags.push_back({"--set", path, value});
    }
    stepsim::resolve_job(input);
  } catch (const stepsim::InputError& error) {
    STEPSIM_CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
  return 0;
}
