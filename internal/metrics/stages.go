package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthrun/berth/internal/figures"
)

// Stages returns how long the stages of jobs took since the daemon's start, sorted by job and stage.
func (r *Recorder) Stages() []figures.Stage {
	found := make(chan prometheus.Metric)
	go func() {
		defer close(found)
		r.stageTimes.Collect(found)
	}()
	var all []figures.Stage
	for metric := range found {
		var m dto.Metric
		if metric.Write(&m) != nil || m.GetHistogram().GetSampleCount() == 0 {
			continue
		}
		h := m.GetHistogram()
		stage := figures.Stage{
			Count: h.GetSampleCount(), Mean: h.GetSampleSum() / float64(h.GetSampleCount()),
			Median: quantile(h, 0.5), Most: quantile(h, 0.95),
		}
		for _, label := range m.GetLabel() {
			switch label.GetName() {
			case "kind":
				stage.Job = label.GetValue()
			case "stage":
				stage.Name = label.GetValue()
			}
		}
		all = append(all, stage)
	}
	slices.SortFunc(all, func(a, b figures.Stage) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Name, b.Name)) })
	return all
}

// quantile estimates a quantile as Prometheus' histogram_quantile does: values are spread evenly in their bucket. One
// beyond the last bound is that bound.
func quantile(h *dto.Histogram, q float64) float64 {
	rank := q * float64(h.GetSampleCount())
	lower, below := 0.0, uint64(0)
	for _, b := range h.GetBucket() {
		count, bound := b.GetCumulativeCount(), b.GetUpperBound()
		if float64(count) >= rank && count > below {
			return lower + (bound-lower)*(rank-float64(below))/float64(count-below)
		}
		lower, below = bound, count
	}
	return lower
}
