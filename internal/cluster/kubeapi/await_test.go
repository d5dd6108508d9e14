package kubeapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"
)

// TestAwaitClusterInfo: a client without credentials must be able to read cluster-info.
func TestAwaitClusterInfo(t *testing.T) {
	statuses := []int{503, 403, 401, 404, 200}
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.URL.Path != infoPath {
			t.Errorf("%s %s %q", r.Method, r.URL, r.Header)
		}
		w.WriteHeader(statuses[min(int(asked.Add(1)), len(statuses))-1])
	}))
	t.Cleanup(server.Close)
	config := api.NewConfig()
	config.CurrentContext = "c"
	config.Clusters["c"] = &api.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
	config.Contexts["c"] = &api.Context{Cluster: "c", AuthInfo: "c"}
	config.AuthInfos["c"] = &api.AuthInfo{Token: "secret"}
	c, err := New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.AwaitClusterInfo(t.Context())
	if int(asked.Load()) != len(statuses) {
		t.Errorf("asked %d times", asked.Load())
	}
}

// TestAwaitServer: an open port is not enough, because an engine's proxy accepts connections too.
// The server must answer.
func TestAwaitServer(t *testing.T) {
	proxy := httptest.NewServer(nil)
	t.Cleanup(proxy.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 4*shortPause)
	defer cancel()
	if Answers(ctx, strings.Replace(proxy.URL, "http:", "https:", 1)) || ctx.Err() != nil {
		t.Error("it answers by TLS")
	}
	if AwaitServer(ctx, strings.Replace(proxy.URL, "http:", "https:", 1)) || ctx.Err() == nil {
		t.Error("it answered by TLS")
	}
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !AwaitServer(ctx, server.URL) || !Answers(ctx, server.URL) || ctx.Err() != nil {
		t.Error("it did not answer by TLS")
	}
}
