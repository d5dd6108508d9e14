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

// print writes the rows, with the ratio of the last peer to the first: above 1 the first is better.
func (t *table) print(w io.Writer, peers []*peer) {
	fmt.Fprintf(w, "\n%s\n%-34s %-8s", t.title, "", "unit")
	for _, p := range peers {
		fmt.Fprintf(w, " %12s", p.name)
	}
	fmt.Fprintf(w, " %8s\n", "times")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%-34s %-8s", r.name, r.unit)
		for _, p := range peers {
			fmt.Fprintf(w, " %12.2f", r.values[p.name])
		}
		first, last := r.values[peers[0].name], r.values[peers[len(peers)-1].name]
		if r.rate {
			first, last = last, first
		}
		fmt.Fprintf(w, " %7.1fx\n", last/first)
	}
}
