// The last steps of building and merging.
#include "segment/build/segment_builder.h"
#include "segment/format/segment_hubs.h"

namespace suffixsvc {

SegmentHeader header_of(const TextTable& texts, std::uint32_t alphabet) {
    SegmentHeader header;
    SegmentCounts& counts = header.counts;
    counts.alphabet = alphabet;
    counts.code_bytes = code_bytes_for(alphabet);
    counts.text = static_cast<std::uint32_t>(texts.positions);
    counts.entries = static_cast<std::uint32_t>(texts.entries);
    counts.texts = static_cast<std::uint32_t>(texts.candidates.size());
    counts.occurrences = static_cast<std::uint32_t>(texts.occ_lsn.size());
    if (!texts.occ_lsn.empty()) {
        header.first_lsn = texts.occ_lsn.front();
        header.last_lsn = texts.occ_lsn.back();
    }
    return header;
}

void require_hub_min(std::uint32_t hub_min) {
    if (hub_min == 1) throw FileFault::invalid("hub_min must be 0 or in 2 .. 2**32 - 1", "", "1");
}

void finish_segment(SegmentWriter& writer, SegmentHeader header, const std::vector<Token>& ids,
                    const std::vector<std::uint32_t>& buckets, const TextTable& texts, std::uint32_t hub_min,
                    SegmentJob& job) {
    SegmentCounts& counts = header.counts;
    // The number of hubs is found last: it moves only hub_index, hubs and sums, which come after hub_start.
    SegmentLayout layout = layout_of(counts);
    writer.write(layout[Column::alphabet], ids);
    writer.write(layout[Column::buckets], buckets);
    writer.write(layout[Column::text_start], texts.start);
    writer.write(layout[Column::text_context], texts.context);
    writer.write(layout[Column::text_age], texts.age);
    writer.write(layout[Column::occ_lsn], texts.occ_lsn);
    writer.write(layout[Column::occ_text], texts.occ_text);
    const TextMap map(texts.start, texts.start.back());
    std::vector<std::uint32_t> weights;
    if (counts.occurrences != counts.texts) weights = texts.weights();
    const SortedColumns columns(writer.map(layout.file_bytes), layout, counts, map, weights);
    const HubList hubs = find_hubs(columns, hub_min, job);
    counts.hubs = static_cast<std::uint32_t>(hubs.hubs.size());
    counts.hub_min = hubs.hub_min;
    layout = layout_of(counts);
    writer.write(layout[Column::hub_start], hubs.start);
    writer.write(layout[Column::hub_index], hubs.index);
    writer.write(layout[Column::hubs], hubs.hubs);
    job.poll();
    writer.finish(header);
    job.report(1.0);
}

}  // namespace suffixsvc
