# Draws a column of the table of scale.sh for the clusters of 10 endpoints per Service: a panel for each mode, both axes
# logarithmic, so that what grows with the cluster is parallel to the dashed line. -v column=N -v unit=TEXT

BEGIN {
    FS = "\t"
    width = 190; height = 300; left = 60; top = 50; pitch = 350
    split("#3b82c4 #d9730d #2f9e5b #d64545 #8b6fd6 #0f97a8 #cc5599 #8a7a50", colors, " ")
}
$3 * $4 == $5 && $4 == 10 && $column > 0 {
    if (!($1 in panels)) { panels[$1] = ++count; mode[count] = $1 }
    if (!($2 in numbers)) { numbers[$2] = ++commands; command[commands] = $2 }
    n = ++points[$1, $2]
    size[$1, $2, n] = $5; value[$1, $2, n] = $column
    ticks[$5]
    if (!x1 || $5 < x0) x0 = $5
    if ($5 > x1) x1 = $5
    if (!y1 || $column < y0) y0 = $column
    if ($column > y1) y1 = $column
}
# Returns the largest power of ten below a number.
function decade(number,    power) {
    for (power = 0.001; power * 10 <= number; power *= 10);
    return power
}
function x(number) { return origin + width * log(number / x0) / log(x1 / x0) }
function y(number) { return top + height - height * log(number / y0) / log(y1 / y0) }
function text(across, down, class, string) {
    printf "<text x=\"%.0f\" y=\"%.0f\" class=\"%s\">%s</text>\n", across, down, class, string
}
END {
    y0 = decade(y0); y1 = 10 * decade(y1)
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
        count * pitch, top + height + 50, count * pitch, top + height + 50
    printf "<title>%s, by Services and mode</title>\n", unit
    print "<style>text{font:12px sans-serif;fill:#59636e}.mode{font-weight:bold;font-size:14px}.end{text-anchor:end}" \
        ".middle{text-anchor:middle}path{fill:none;stroke:#8c959f;stroke-width:2}.grid{stroke-width:1;stroke-opacity:.35}" \
        ".linear{stroke-dasharray:4 4}@media(prefers-color-scheme:dark){text{fill:#b0b8c1}}</style>"
    for (panel = 1; panel <= count; panel++) {
        origin = (panel - 1) * pitch + left
        text(origin, 20, "mode", mode[panel])
        text(origin, 38, "", unit)
        for (tick = y0; tick <= y1 * 1.01; tick *= 10) {
            printf "<path class=\"grid\" d=\"M%.0f %.0fh%d\"/>\n", origin, y(tick), width
            text(origin - 6, y(tick) + 4, "end", tick)
        }
        for (tick in ticks) text(x(tick), top + height + 18, "middle", tick / 10 >= 1000 ? tick / 10000 "k" : tick / 10)
        text(origin + width / 2, top + height + 36, "middle", "Services of 10 endpoints")
        printf "<path class=\"linear\" d=\"M%.0f %.1fL%.0f %.1f\"/>\n", x(x0), y(y0 * 2), x(x1), y(y0 * 2 * x1 / x0)
        labels = 0
        for (c = 1; c <= commands; c++) {
            if (!((mode[panel], command[c]) in points)) continue
            line = ""
            for (n = 1; n <= points[mode[panel], command[c]]; n++) {
                value_y = y(value[mode[panel], command[c], n])
                line = line sprintf("%s%.1f %.1f", n > 1 ? "L" : "M", x(size[mode[panel], command[c], n]), value_y)
            }
            printf "<path style=\"stroke:%s\" d=\"%s\"/>\n", colors[c], line
            # Sorts the label in, by height.
            for (n = ++labels; n > 1 && label_y[n - 1] > value_y; n--) { label_y[n] = label_y[n - 1]; label[n] = label[n - 1] }
            label_y[n] = value_y; label[n] = c
        }
        for (n = 1; n <= labels; n++) {
            if (n > 1 && label_y[n] < label_y[n - 1] + 14) label_y[n] = label_y[n - 1] + 14
            printf "<text x=\"%.0f\" y=\"%.0f\" style=\"fill:%s\">%s</text>\n", origin + width + 6, label_y[n] + 4,
                colors[label[n]], command[label[n]]
        }
    }
    print "</svg>"
}
