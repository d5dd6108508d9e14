package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

// page draws a result as one HTML file that needs no other file.
func page(r *result, file string) error {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	return t.Execute(out, newPageData(r))
}

// pageData is what page.html shows.
type pageData struct {
	When, Host string
	Peers      []pagePeer
	Stages     []pageBar
	Spreads    []pageSpread
	Curves     []pageCurve
	Tables     []pageTable
}

type pagePeer struct{ Name, Version, Color string }

// pageBar is one peer's pod up, in its calls.
type pageBar struct {
	Peer  string
	Total string
	Y     int
	Parts []pagePart
}

type pagePart struct {
	Name, Label string
	X, Width    float64
	Class       string
}

// pageSpread is one row of samples: per peer a line from p10 to p90 and a dot at the median.
type pageSpread struct {
	Title, Unit, Max string
	Height           int
	Lines            []pageLine
}

type pageLine struct {
	Peer, Color, Text string
	Y                 int
	From, To, Median  float64
}

// pageCurve is one figure over the number of pods.
type pageCurve struct {
	Title, Min, Max string
	Last            int
	// Zero is the height of the value 0.
	Zero  float64
	Lines []pagePath
}

type pagePath struct {
	Peer, Color string
	Points      string
	Dots        []pageDot
}

type pageDot struct {
	X, Y float64
	Text string
}

type pageTable struct {
	Title string
	Notes []string
	Heads []string
	Rows  [][]string
}

// plotWidth is the width of plots in the units of their drawing.
const plotWidth = 560.0

// color is that of a peer in the plots.
func color(peer string) string {
	return map[string]string{
		"berth": "#2a6fdb", "before": "#8ab0ee", "docker": "#0f9d8a", "cri-dockerd": "#d9822b", "crio": "#8e5bd0", "containerd": "#c23b5a", "no-igzip": "#e08a9f", "in-process": "#2a6fdb", "programs": "#c23b5a", floorName: "#7a7f87",
	}[peer]
}

func newPageData(r *result) pageData {
	data := pageData{When: r.When, Host: r.Host}
	for _, p := range r.Peers {
		data.Peers = append(data.Peers, pagePeer{p.Name, p.Version, color(p.Name)})
	}
	for _, t := range r.Sections {
		data.Stages = append(data.Stages, stages(t.peersOr(r.Peers), t)...)
		for _, row := range t.Rows {
			if row.Figure == "percentiles" && t.Pods == 0 {
				data.Spreads = append(data.Spreads, spread(t.peersOr(r.Peers), row))
			}
		}
		data.Tables = append(data.Tables, tableOf(r, t))
	}
	data.Curves = curves(r)
	return data
}

// columns are the names of the columns that a row may have samples of.
func columns(peers []peerInfo) []string {
	names := []string{floorName}
	for _, p := range peers {
		names = append(names, p.Name)
	}
	return names
}

// stages draws the calls of a pod up, if a section has them.
func stages(peers []peerInfo, t *table) (bars []pageBar) {
	calls := []string{"RunPodSandbox", "CreateContainer", "StartContainer"}
	medians := map[string]map[string]float64{}
	longest := 0.0
	for _, row := range t.Rows {
		if !slices.Contains(calls, row.Name) {
			continue
		}
		for peer, samples := range row.Samples {
			if medians[peer] == nil {
				medians[peer] = map[string]float64{}
			}
			medians[peer][row.Name] = quantile(samples, 50)
		}
	}
	sum := func(peer string) (total float64) {
		for _, ms := range medians[peer] {
			total += ms
		}
		return total
	}
	for peer := range medians {
		longest = max(longest, sum(peer))
	}
	for _, p := range peers {
		if medians[p.Name] == nil {
			continue
		}
		bar := pageBar{Peer: p.Name, Total: fmt.Sprintf("%.1f ms", sum(p.Name)), Y: 8 + 34*len(bars)}
		x := 0.0
		for i, call := range calls {
			width := medians[p.Name][call] / longest * plotWidth
			bar.Parts = append(bar.Parts, pagePart{
				Name: call, Label: fmt.Sprintf("%s: %s %.1f ms", p.Name, call, medians[p.Name][call]),
				X: x, Width: width, Class: fmt.Sprintf("stage%d", i),
			})
			x += width
		}
		bars = append(bars, bar)
	}
	return bars
}

func spread(peers []peerInfo, row *row) pageSpread {
	longest := 0.0
	for _, samples := range row.Samples {
		longest = max(longest, quantile(samples, 90))
	}
	s := pageSpread{Title: row.Name, Unit: row.Unit, Max: fmt.Sprintf("%.1f", longest)}
	for _, name := range columns(peers) {
		samples := row.Samples[name]
		if len(samples) == 0 {
			continue
		}
		at := func(q int) float64 { return quantile(samples, q) / longest * plotWidth }
		s.Lines = append(s.Lines, pageLine{
			Peer: name, Color: color(name), Y: 16 + 24*len(s.Lines), From: at(10), To: at(90), Median: at(50),
			Text: fmt.Sprintf("%s: p10 %.2f, p50 %.2f, p90 %.2f %s", name, quantile(samples, 10), quantile(samples, 50), quantile(samples, 90), row.Unit),
		})
	}
	s.Height = 16 + 24*len(s.Lines)
	return s
}

// curves draws each figure that was measured at several numbers of pods.
func curves(r *result) (all []pageCurve) {
	var sections []*table
	for _, t := range r.Sections {
		if t.Pods > 0 {
			sections = append(sections, t)
		}
	}
	if len(sections) < 2 {
		return nil
	}
	for _, row := range sections[0].Rows {
		all = append(all, curve(r, sections, row.Name, row.Unit))
	}
	return all
}

const plotHeight = 180.0

func curve(r *result, sections []*table, name, unit string) pageCurve {
	last, lowest, highest := 0, 0.0, 0.0 // a difference may be negative
	for _, t := range sections {
		last = max(last, t.Pods)
		for _, p := range r.Peers {
			if value, ok := t.value(name, p.Name); ok {
				lowest, highest = min(lowest, value), max(highest, value)
			}
		}
	}
	height := func(value float64) float64 { return plotHeight - (value-lowest)/max(highest-lowest, 1e-9)*plotHeight }
	c := pageCurve{Title: name, Min: fmt.Sprintf("%.1f", lowest), Max: fmt.Sprintf("%.1f %s", highest, unit), Last: last, Zero: height(0)}
	for _, p := range r.Peers {
		line := pagePath{Peer: p.Name, Color: color(p.Name)}
		var points []string
		for _, t := range sections {
			value, ok := t.value(name, p.Name)
			if !ok {
				continue
			}
			x, y := float64(t.Pods)/float64(last)*plotWidth, height(value)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
			line.Dots = append(line.Dots, pageDot{x, y, fmt.Sprintf("%s, %d pods: %.2f %s", p.Name, t.Pods, value, unit)})
		}
		line.Points = strings.Join(points, " ")
		c.Lines = append(c.Lines, line)
	}
	return c
}

// value is the first figure of a row for a peer.
func (t *table) value(name, peer string) (float64, bool) {
	i := slices.IndexFunc(t.Rows, func(r *row) bool { return r.Name == name })
	if i < 0 {
		return 0, false
	}
	value, ok := t.Rows[i].figures()[0].values[peer]
	return value, ok
}

func tableOf(r *result, t *table) pageTable {
	peers := t.peersOr(r.Peers)
	out := pageTable{Title: fmt.Sprintf("%s (load %.1f)", t.Title, t.Load), Notes: t.Notes, Heads: append([]string{"", "unit"}, columns(peers)...)}
	pairs := t.comparisons(r.Peers)
	for _, c := range pairs {
		out.Heads = append(out.Heads, c.String())
	}
	for _, row := range t.Rows {
		for _, f := range row.figures() {
			line := []string{f.name, f.unit}
			for _, name := range columns(peers) {
				line = append(line, f.text(name))
			}
			for _, c := range pairs {
				line = append(line, f.times(c))
			}
			out.Rows = append(out.Rows, line)
		}
	}
	return out
}
