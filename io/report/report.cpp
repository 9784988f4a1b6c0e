#include "io/report/report.hpp"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "io/report/page_data.hpp"
#include "io/report/page_text.hpp"
#include "io/report/tables.hpp"
#include "kernels/base/error.hpp"
#include "report_page.hpp"  // made of the files in page/

namespace sestina {
namespace {

// Puts parts in for the marks "@{name}" of the template; what stands inside a part is left alone.
std::string filled(std::string_view page, const std::map<std::string_view, std::string_view>& parts) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t mark = page.find("@{", at);
    out += page.substr(at, mark - at);
    if (mark == page.npos) return out;
    const std::size_t end = page.find('}', mark);
    const auto part = parts.find(page.substr(mark + 2, end - mark - 2));
    SESTINA_REQUIRE(part != parts.end(), "{}", page.substr(mark, end - mark + 1));
    out += part->second;
    at = end + 1;
  }
}

}  // namespace

std::string report_html(const std::vector<ReportRun>& runs, const ReportOptions& options) {
  std::string title = fmt::format("Sestina: {} runs", runs.size());
  if (runs.size() <= 3) {
    title = "Sestina";
    for (std::size_t r = 0; r < runs.size(); ++r) title += (r == 0 ? ": " : ", ") + runs[r].label;
  }
  const std::string shown_title = escape_html(title), made = escape_html(options.made);
  // Without a script the browser itself loads the page again.
  const std::string reload = options.reload > 0
                                 ? fmt::format("<noscript><meta http-equiv=\"refresh\" content=\"{:.0f}\"></noscript>",
                                               std::max(1.0, options.reload))
                                 : "";
  const std::string summary = summary_table(runs), facts = facts_table(runs), records = record_tables(runs),
                    data = page_data(runs, options);
  return filled(page::report_html, {{"title", shown_title},
                                    {"reload", reload},
                                    {"style", page::report_css},
                                    {"made", made},
                                    {"summary", summary},
                                    {"facts", facts},
                                    {"records", records},
                                    {"data", data},
                                    {"numbers.js", page::numbers_js},
                                    {"chart.js", page::chart_js},
                                    {"panels.js", page::panels_js},
                                    {"report.js", page::report_js}});
}

}  // namespace sestina
