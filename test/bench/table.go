package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// table collects the results of one section: a row per measurement, a column per peer.
type table struct {
	title string
	rows  []*row
}

type row struct {
	name, unit string
	values     map[string]float64
	// rate is true if more is better.
	rate bool
}

func (t *table) set(p *peer, name, unit string, value float64) *row {
	for _, r := range t.rows {
		if r.name == name {
			r.values[p.name] = value
			return r
		}
	}
	r := &row{name: name, unit: unit, values: map[string]float64{p.name: value}}
	t.rows = append(t.rows, r)
	return r
}

func (t *table) setRate(p *peer, name, unit string, value float64) {
	t.set(p, name, unit, value).rate = true
}

// percentiles sets p50, p90 and p99 of samples, in milliseconds.
func (t *table) percentiles(p *peer, name string, samples []time.Duration) {
	slices.Sort(samples)
	for _, q := range []int{50, 90, 99} {
		at := samples[min(len(samples)*q/100, len(samples)-1)]
		t.set(p, fmt.Sprintf("%s p%d", name, q), "ms", float64(at)/float64(time.Millisecond))
	}
}

// print writes the rows, with a ratio for each peer that is compared with another one: above 1 the
// other one is better. A figure that a peer does not have is "-".
func (t *table) print(w io.Writer, peers []*peer) {
	pairs := comparisons(peers)
	fmt.Fprintf(w, "\n%s\n%-34s %-8s", t.title, "", "unit")
	for _, p := range peers {
		fmt.Fprintf(w, " %12s", p.name)
	}
	for _, pair := range pairs {
		fmt.Fprintf(w, " %18s", pair[0].name+"/"+pair[1].name)
	}
	fmt.Fprintln(w)
	for _, r := range t.rows {
		fmt.Fprintf(w, "%-34s %-8s", r.name, r.unit)
		for _, p := range peers {
			if value, ok := r.values[p.name]; ok {
				fmt.Fprintf(w, " %12.2f", value)
			} else {
				fmt.Fprintf(w, " %12s", "-")
			}
		}
		for _, pair := range pairs {
			fmt.Fprintf(w, " %18s", r.ratio(pair[0], pair[1]))
		}
		fmt.Fprintln(w)
	}
}

// comparisons are the pairs of peers to compare: each with the one that it names, if that one is
// measured.
func comparisons(peers []*peer) (pairs [][2]*peer) {
	for _, p := range peers {
		for _, other := range peers {
			if other != p && other.name == p.beside {
				pairs = append(pairs, [2]*peer{p, other})
			}
		}
	}
	return pairs
}

// ratio is how many times better other is, such as "4.8x".
func (r *row) ratio(p, other *peer) string {
	value, ok := r.values[p.name]
	base, also := r.values[other.name]
	if !ok || !also {
		return "-"
	}
	if r.rate {
		value, base = base, value
	}
	return fmt.Sprintf("%.1fx", value/base)
}
