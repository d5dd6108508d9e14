//go:build integration

package integration

import (
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/dashboards"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// publicDashboards requires data for the queries of dashboards and alerts that are made for other runtimes: those of a
// daemon's own metrics, or those of what the kubelet gets by CRI. A query that has no data says why. Described are the
// series that a host could have.
func publicDashboards(t *testing.T, cri bool, series, described []string) {
	t.Helper()
	queries, err := dashboards.Queries()
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range queries {
		if query.CRI != cri {
			continue
		}
		in := series
		if query.Host != "" {
			in = described
		}
		missing := dashboards.Missing(query.Expr, in)
		switch {
		case query.Absent == "" && len(missing) > 0:
			t.Errorf("%s: %s has no data: %q", query.Source, query.Expr, missing)
		case query.Absent != "" && len(missing) == 0:
			t.Errorf("%s: %s has data, though test/dashboards/queries.yaml says that it has none: %s", query.Source, query.Expr, query.Absent)
		}
	}
}

// containerSeries are the series that the kubelet makes of ListPodSandboxMetrics, and one for each metric that
// ListMetricDescriptors describes.
func containerSeries(b *harness.Berth) (series, described []string) {
	b.T.Helper()
	descriptors, err := b.Runtime.ListMetricDescriptors(b.Ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		b.T.Fatal(err)
	}
	labels := map[string][]string{}
	for _, d := range descriptors.Descriptors {
		labels[d.Name] = d.LabelKeys
		described = append(described, d.Name+"{"+strings.Join(d.LabelKeys, `="any",`)+`="any"}`)
	}
	list, err := b.Runtime.ListPodSandboxMetrics(b.Ctx(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		b.T.Fatal(err)
	}
	for _, pod := range list.PodMetrics {
		all := pod.Metrics
		for _, container := range pod.ContainerMetrics {
			all = append(all, container.Metrics...)
		}
		for _, metric := range all {
			var pairs []string
			for i, value := range metric.LabelValues {
				pairs = append(pairs, labels[metric.Name][i]+"="+strconv.Quote(value))
			}
			series = append(series, metric.Name+"{"+strings.Join(pairs, ",")+"}")
		}
	}
	return series, described
}
