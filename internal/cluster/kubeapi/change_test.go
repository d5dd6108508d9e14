package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// infoPath is the path of the ConfigMap kube-public/cluster-info.
const infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// recorder answers calls by method and path, and records the requests.
type recorder struct {
	t       *testing.T
	answers map[string][]answer

	mu  sync.Mutex
	all []string
}

// asked are the requests so far.
func (r *recorder) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

type answer struct {
	status int
	text   string
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		r.t.Error(err)
	}
	key := q.Method + " " + q.URL.RequestURI()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, strings.TrimSpace(key+" "+strings.TrimPrefix(q.Header.Get("Content-Type"), "application/")+" "+string(body)))
	all := r.answers[key]
	if len(all) == 0 {
		return
	}
	if len(all) > 1 {
		r.answers[key] = all[1:]
	}
	if strings.HasPrefix(all[0].text, "{") {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(all[0].status)
	fmt.Fprint(w, all[0].text)
}

func record(t *testing.T, answers map[string][]answer) (*recorder, *Client) {
	r := &recorder{t: t, answers: answers}
	return r, client(t, r.ServeHTTP)
}

// TestWriteConfigMap: the first write creates it, later writes replace it, also if the server is
// not ready at first.
func TestWriteConfigMap(t *testing.T) {
	const at = "/api/v1/namespaces/kube-system/configmaps"
	r, c := record(t, map[string][]answer{
		"PUT " + at + "/berth": {{503, "not yet"}, {404, "no such thing"}, {200, "{}"}},
		"GET " + at + "/berth": {{404, "no such thing"}, {200, `{"data":{"a":"b"}}`}},
	})
	if _, err := c.ReadConfigMap(t.Context(), "berth"); !errors.Is(err, errs.NotFound) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		if err := c.WriteConfigMap(t.Context(), "berth", map[string]string{"a": "b"}); err != nil {
			t.Error(err)
		}
	}
	if got, err := c.ReadConfigMap(t.Context(), "berth"); err != nil || got["a"] != "b" {
		t.Errorf("%v, %v", got, err)
	}
	var methods []string
	for _, asked := range r.asked() {
		methods = append(methods, strings.Fields(asked)[0])
	}
	if want := []string{"GET", "PUT", "PUT", "POST", "PUT", "GET"}; !slices.Equal(methods, want) {
		t.Errorf("%q, want %q", methods, want)
	}
	if !strings.Contains(r.asked()[3], `"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"berth"},"data":{"a":"b"}`) {
		t.Error(r.asked()[3])
	}
}

// TestSignClusterInfo: the controller manager compares the signature byte by byte.
func TestSignClusterInfo(t *testing.T) {
	r, c := record(t, map[string][]answer{"GET " + infoPath: {{503, "not yet"}, {200, `{"data":{"kubeconfig":"x","jws-kubeconfig-older0":"y"}}`}}})
	if err := c.SignClusterInfo(t.Context(), "abcdef.0123456789abcdef"); err != nil {
		t.Error(err)
	}
	want := []string{
		"GET " + infoPath, "GET " + infoPath,
		"PATCH " + infoPath + ` merge-patch+json {"data":{"jws-kubeconfig-abcdef":"eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..0TaMGHmkUmrmJzX2IZH40z8KPjHdxhjPikTkoySmxlA"}}`,
	}
	if !slices.Equal(r.asked(), want) {
		t.Errorf("%q, want %q", r.asked(), want)
	}
	_, c = record(t, map[string][]answer{"GET " + infoPath: {{404, ""}}})
	if err := c.SignClusterInfo(t.Context(), "other0.0123456789abcdef"); !errors.Is(err, errs.NotFound) || strings.Contains(err.Error(), "0123456789abcdef") {
		t.Errorf("a cluster that tells nothing of itself: %v", err)
	}
}

func TestChangesOfNodes(t *testing.T) {
	r, c := record(t, map[string][]answer{"DELETE /api/v1/nodes/gone": {{404, ""}}, "DELETE /api/v1/nodes/bad": {{422, "no"}}})
	value := "b"
	for _, err := range []error{
		c.LabelNode(t.Context(), "n", map[string]*string{"a": &value, "c": nil}), c.Cordon(t.Context(), "n"),
		c.DeleteNode(t.Context(), "n"), c.DeleteNode(t.Context(), "gone"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := []string{
		`PATCH /api/v1/nodes/n merge-patch+json {"metadata":{"labels":{"a":"b","c":null}}}`,
		`PATCH /api/v1/nodes/n merge-patch+json {"spec":{"unschedulable":true}}`,
		"DELETE /api/v1/nodes/n", "DELETE /api/v1/nodes/gone",
	}
	if !slices.Equal(r.asked(), want) {
		t.Errorf("%q, want %q", r.asked(), want)
	}
	if err := c.DeleteNode(t.Context(), "bad"); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "cannot delete the node bad") {
		t.Error(err)
	}
}

func podOf(name, more string) map[string]any {
	p := map[string]any{"metadata": map[string]any{"name": name, "namespace": "n", "uid": "u-" + name}}
	if more != "" {
		if err := json.Unmarshal([]byte(more), &p); err != nil {
			panic(err)
		}
	}
	return p
}

func podList(pods ...map[string]any) string {
	text, err := json.Marshal(map[string]any{"items": pods})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestDrain: drain leaves pods that end with the node. It retries the eviction of a protected pod.
// The error names pods that do not end in time.
func TestDrain(t *testing.T) {
	const list = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dw"
	stay := []map[string]any{
		podOf("proxy", `{"metadata":{"name":"proxy","namespace":"n","ownerReferences":[{"kind":"DaemonSet"}]}}`),
		podOf("etcd", `{"metadata":{"name":"etcd","namespace":"n","annotations":{"kubernetes.io/config.mirror":""}}}`),
		podOf("done", `{"status":{"phase":"Succeeded"}}`),
	}
	ending := podOf("b", `{"metadata":{"name":"b","namespace":"n","deletionTimestamp":"2026-01-02T03:04:05Z"}}`)
	r, c := record(t, map[string][]answer{
		list: {{200, podList(append(stay, podOf("a", ""), podOf("b", ""))...)}, {200, podList(append(stay, podOf("a", ""), ending)...)}, {200, podList(stay...)}},
		"POST /api/v1/namespaces/n/pods/a/eviction": {{429, "budget"}, {201, ""}},
	})
	if err := c.Drain(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	var evicted []string
	for _, asked := range r.asked() {
		if path, found := strings.CutPrefix(asked, "POST /api/v1/namespaces/n/pods/"); found {
			evicted = append(evicted, path[:1])
			if !strings.Contains(asked, `"uid":"u-`+path[:1]+`"`) {
				t.Error(asked)
			}
		}
	}
	if !slices.Equal(evicted, []string{"a", "b", "a"}) || !strings.HasPrefix(r.asked()[0], "PATCH /api/v1/nodes/w ") {
		t.Errorf("evicted %q of %q", evicted, r.asked())
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	_, c = record(t, map[string][]answer{
		list: {{200, podList(podOf("a", ""), ending)}},
		"POST /api/v1/namespaces/n/pods/a/eviction": {{429, "budget"}},
	})
	seen := make(chan struct{}, 100)
	c.http.Transport = &notifier{c.http.Transport, seen}
	go func() {
		for range 3 {
			<-seen
		}
		cancel(errors.New("late"))
	}()
	err := c.Drain(ctx, "w")
	if err == nil || !strings.Contains(err.Error(), "n/a (its disruption budget does not allow it), n/b have not ended") || !strings.Contains(err.Error(), "late") {
		t.Errorf("%v", err)
	}
}
