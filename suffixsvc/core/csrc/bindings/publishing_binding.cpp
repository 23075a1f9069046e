// Python binding of what a namespace publishes.
#include "bindings/convert.h"
#include "publish/shared_runs.h"

using namespace suffixsvc;

void suffixsvc::bind_publishing(nb::module_& m) {
    const nb::object unobserved = nb::cast(new SegmentJob, nb::rv_policy::take_ownership);
    m.def(
        "shared_runs",
        [](std::span<const Token> tokens, std::span<const std::uint64_t> lengths,
           std::span<const std::uint32_t> principals, std::uint32_t min_principals, std::uint32_t min_length,
           SegmentJob& job) {
            SharedRuns found = released(
                [&] { return shared_runs({tokens, lengths, principals}, min_principals, min_length, job); });
            return std::tuple(to_numpy(std::move(found.tokens)), to_numpy(std::move(found.lengths)),
                              found.dropped);
        },
        "tokens"_a, "lengths"_a, "principals"_a, "min_principals"_a, "min_length"_a, "job"_a = unobserved);
    m.attr("MAX_SHARED_TOKENS") = kMaxSharedTokens;
}
