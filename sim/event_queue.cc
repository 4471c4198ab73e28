#include "sim/event_queue.h"

namespace stepsim {

void EventQueue::sink(std::size_t place, const Event& event) {
  const std::size_t size = heap_.size();
  for (std::size_t child = 2 * place + 1; child < size; child = 2 * place + 1) {
    if (child + 1 < size && earlier(heap_[child + 1], heap_[child])) ++child;
    if (!earlier(heap_[child], event)) break;
    put(place, heap_[child]);
    place = child;
  }
  put(place, event);
}

void EventQueue::move(std::uint32_t slot, TimePoint at) {
  const std::size_t place = place_[slot];
  Event event = heap_[place];
  const bool sooner = at < event.at;
  event.at = at;
  if (sooner) {
    rise(place, event);
  } else {
    sink(place, event);
  }
}

}  // namespace stepsim
