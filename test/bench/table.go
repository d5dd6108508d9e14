package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// table collects the results of one section: a row per measurement, a column per peer. It is also the
// form of the result file.
type table struct {
	Title string `json:"title"`
	// Pods is how many pods run in a section about density, 0 in others.
	Pods int    `json:"pods,omitempty"`
	Rows []*row `json:"rows"`
	// Notes are what a reader of the figures must know.
	Notes []string `json:"notes,omitempty"`
	// Peers are those of a section that has its own, nil if they are those of the run.
	Peers []peerInfo `json:"peers,omitempty"`
	// Load is the machine's load average of a minute when the section began.
	Load float64 `json:"load"`
}

// row is one measurement. Samples are in Unit, in the order of their measurement, by peer.
type row struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Rate is true if more is better.
	Rate    bool                 `json:"rate,omitempty"`
	Samples map[string][]float64 `json:"samples"`
	// Figure says what the table prints: "median", "mean", or "percentiles" for p50, p90 and p99.
	Figure string `json:"figure"`
}

func (t *table) add(peer, name, unit, figure string, rate bool, value float64) {
	i := slices.IndexFunc(t.Rows, func(r *row) bool { return r.Name == name })
	if i < 0 {
		i = len(t.Rows)
		t.Rows = append(t.Rows, &row{Name: name, Unit: unit, Rate: rate, Figure: figure, Samples: map[string][]float64{}})
	}
	t.Rows[i].Samples[peer] = append(t.Rows[i].Samples[peer], value)
}

// sample adds one duration to a row that shows percentiles.
func (t *table) sample(peer, name string, took time.Duration) {
	t.add(peer, name, "ms", "percentiles", false, milli(took))
}

func (t *table) mean(peer, name, unit string, value float64) {
	t.add(peer, name, unit, "mean", false, value)
}

func (t *table) median(peer, name, unit string, value float64) {
	t.add(peer, name, unit, "median", false, value)
}

func (t *table) rate(peer, name, unit string, value float64) {
	t.add(peer, name, unit, "median", true, value)
}

// figure is one line of the printed table.
type figure struct {
	name, unit string
	rate       bool
	values     map[string]float64
}

// figures are the lines that a row is printed as.
func (r *row) figures() (all []figure) {
	if r.Figure != "percentiles" {
		f := figure{name: r.Name, unit: r.Unit, rate: r.Rate, values: map[string]float64{}}
		for peer, samples := range r.Samples {
			if r.Figure == "mean" {
				f.values[peer] = mean(samples)
			} else {
				f.values[peer] = quantile(samples, 50)
			}
		}
		return []figure{f}
	}
	for _, q := range []int{50, 90, 99} {
		f := figure{name: fmt.Sprintf("%s p%d", r.Name, q), unit: r.Unit, rate: r.Rate, values: map[string]float64{}}
		for peer, samples := range r.Samples {
			f.values[peer] = quantile(samples, q)
		}
		all = append(all, f)
	}
	return all
}

// quantile returns the sample that q percent of all are below.
func quantile(samples []float64, q int) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)*q/100, len(sorted)-1)]
}

func mean(samples []float64) float64 {
	sum := 0.0
	for _, s := range samples {
		sum += s
	}
	return sum / float64(len(samples))
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// pair is a peer and the one that it is compared with.
type pair struct{ peer, beside string }

func (c pair) String() string { return c.peer + "/" + c.beside }

// comparisons are the pairs to compare: each peer with the one that it names, if that one is measured,
// and the first peer of the run with the floor.
func (t *table) comparisons(run []peerInfo) (pairs []pair) {
	peers := t.peersOr(run)
	if t.Peers == nil || t.hasFloor() {
		pairs = append(pairs, pair{peers[0].Name, floorName})
	}
	for _, p := range peers {
		if slices.ContainsFunc(peers, func(other peerInfo) bool { return other.Name != p.Name && other.Name == p.Beside }) {
			pairs = append(pairs, pair{p.Name, p.Beside})
		}
	}
	return pairs
}

// hasFloor reports whether a row has samples of the floor.
func (t *table) hasFloor() bool {
	return slices.ContainsFunc(t.Rows, func(r *row) bool { return len(r.Samples[floorName]) > 0 })
}

// peersOr returns the peers of a section that has its own, else those of the run.
func (t *table) peersOr(run []peerInfo) []peerInfo {
	if t.Peers != nil {
		return t.Peers
	}
	return run
}

// print writes the rows, with a ratio for each comparison: above 1 the second of its names is better. A
// figure that a peer does not have is "-".
func (t *table) print(w io.Writer, run []peerInfo) {
	peers := t.peersOr(run)
	pairs := t.comparisons(run)
	width := 34
	for _, r := range t.Rows {
		for _, f := range r.figures() {
			width = max(width, len(f.name))
		}
	}
	fmt.Fprintf(w, "\n%s (load %.1f)\n", t.Title, t.Load)
	for _, note := range t.Notes {
		fmt.Fprintf(w, "  %s\n", note)
	}
	fmt.Fprintf(w, "%-*s %-5s %8s", width, "", "unit", floorName)
	for _, p := range peers {
		fmt.Fprintf(w, " %12s", p.Name)
	}
	for _, c := range pairs {
		fmt.Fprintf(w, " %*s", max(len(c.String()), 6), c)
	}
	fmt.Fprintln(w)
	for _, r := range t.Rows {
		for _, f := range r.figures() {
			fmt.Fprintf(w, "%-*s %-5s %8s", width, f.name, f.unit, f.text(floorName))
			for _, p := range peers {
				fmt.Fprintf(w, " %12s", f.text(p.Name))
			}
			for _, c := range pairs {
				fmt.Fprintf(w, " %*s", max(len(c.String()), 6), f.times(c))
			}
			fmt.Fprintln(w)
		}
	}
}

func (f figure) text(peer string) string {
	value, ok := f.values[peer]
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2f", value)
}

// ratio is how many times better the second of a pair is. False if one of them has no such figure.
func (f figure) ratio(c pair) (ratio float64, ok bool) {
	value, ok := f.values[c.peer]
	base, also := f.values[c.beside]
	if f.rate {
		value, base = base, value
	}
	if !ok || !also || base == 0 {
		return 0, false
	}
	return value / base, true
}

// times is the ratio as the table shows it, such as "4.8x".
func (f figure) times(c pair) string {
	ratio, ok := f.ratio(c)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.1fx", ratio)
}
