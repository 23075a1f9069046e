#include "segment/format/segment_format.h"

namespace suffixsvc {

SegmentLayout layout_of(const SegmentCounts& c) {
    SegmentLayout layout;
    std::uint64_t at = sizeof(SegmentHeader);
    const auto place = [&](Column column, std::uint64_t elements, std::uint64_t element_bytes) {
        const std::uint64_t bytes = elements * element_bytes;
        layout.columns[static_cast<std::size_t>(column)] = {at, bytes};
        at = (at + bytes + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
    };
    // In the order of the file, which is that of Column.
    place(Column::alphabet, c.alphabet, 4);
    place(Column::buckets, std::uint64_t{c.alphabet} + 2, 4);
    place(Column::text, c.text, c.code_bytes);
    place(Column::order, c.entries, 4);
    place(Column::next, c.entries, c.code_bytes);
    place(Column::lcp, c.entries, 1);
    place(Column::text_start, std::uint64_t{c.texts} + 1, 4);
    place(Column::text_context, c.texts, 1);
    place(Column::text_age, c.texts, 8);
    place(Column::occ_lsn, c.occurrences, 8);
    place(Column::occ_text, c.occurrences, 4);
    place(Column::hub_start, c.hubs, 4);
    place(Column::hub_index, c.entries / kHubBlock + 2, 4);
    place(Column::hubs, c.hubs, sizeof(SegmentHub));
    layout.blocks = (at - sizeof(SegmentHeader) + kSegmentBlock - 1) / kSegmentBlock;
    place(Column::sums, layout.blocks, 4);
    layout.file_bytes = layout[Column::sums].offset + layout[Column::sums].bytes;
    return layout;
}

}  // namespace suffixsvc
