package clustertest

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// serve answers with the nodes that have joined, sends no events on a watch, and keeps a ConfigMap.
func (f *Fake) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") != "" {
		return
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	switch {
	case r.Method != http.MethodGet:
		f.change(w, r)
	case strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info"):
		fmt.Fprint(w, `{"data":{"kubeconfig":"x"}}`)
	case strings.HasSuffix(r.URL.Path, "/configmaps/coredns"):
		if f.CoreDNS == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.CoreDNS)
	case strings.Contains(r.URL.Path, "/configmaps/"):
		if f.Config == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.Config)
	case r.URL.Path == "/api/v1/pods":
		fmt.Fprint(w, `{"items":[]}`)
	default:
		f.serveNodes(w)
	}
}

// checkJoin fails a node that joins with a token that the cluster has not signed.
func (f *Fake) checkJoin(node, line string) {
	for path, text := range f.Files {
		if found := regexp.MustCompile(`token: "?([a-z0-9]{6})\.`).FindStringSubmatch(text); found != nil && strings.HasPrefix(path, node+":") && strings.Contains(line, " join") &&
			!strings.Contains(f.Signed, `"jws-kubeconfig-`+found[1]+`":"`) {
			f.T.Errorf("%s: %s with the token %s, signed is %s", node, line, found[1], f.Signed)
		}
	}
}

// change makes the changes of a request to the API.
func (f *Fake) change(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.T.Error(err)
	}
	if strings.HasSuffix(r.URL.Path, "/configmaps/coredns") {
		f.CoreDNS = string(body)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/secrets") {
		f.Tokens = append(f.Tokens, string(body))
		return
	}
	if strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info") {
		f.Signed += string(body)
		return
	}
	if strings.Contains(r.URL.Path, "/configmaps") {
		if r.Method == http.MethodPut && f.Config == "" {
			http.NotFound(w, r)
			return
		}
		f.Config = string(body)
		return
	}
	name := path.Base(r.URL.Path)
	f.Changed = append(f.Changed, r.Method+" "+name+" "+string(body))
	if r.Method == http.MethodDelete {
		f.Joined = slices.DeleteFunc(f.Joined, func(n string) bool { return n == name })
	}
}

func (f *Fake) serveNodes(w http.ResponseWriter) {
	if f.Hidden != nil {
		f.Hidden()
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
		return
	}
	var items []string
	for i, name := range f.Joined {
		status := "True"
		if f.NotReady == name {
			status = "False"
		}
		seen, fixed := f.Heartbeats[name]
		if !fixed {
			seen = time.Now().Add(-f.Behind)
		}
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"podCIDRs":["10.244.%d.0/24"]},"status":{"conditions":[{"type":"Ready","status":%q,"message":"no network","lastHeartbeatTime":%q}],
"addresses":[{"type":"InternalIP","address":"10.89.0.%d"}]}}`, name, i, status, seen.Format(time.RFC3339), i+2))
	}
	fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(items, ","))
}
