package kubeapi

import (
	"net/http"
	"testing"

	"k8s.io/client-go/tools/clientcmd/api"
)

// TestNoProxy: requests do not go through the proxies of the environment, with and without credentials. Go excludes loopback
// by itself, so the server has another address, and no request is sent.
func TestNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	config := api.NewConfig()
	config.CurrentContext = "c"
	config.Clusters["c"] = &api.Cluster{Server: "https://192.0.2.1:6443", InsecureSkipTLSVerify: true}
	config.Contexts["c"] = &api.Context{Cluster: "c", AuthInfo: "c"}
	config.AuthInfos["c"] = &api.AuthInfo{}
	c, err := New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Clusters["c"].Server, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]*http.Client{"with credentials": c.http, "without": c.anonymousHTTP} {
		transport, ok := client.Transport.(*http.Transport)
		if !ok {
			t.Fatalf("%s: the transport is a %T, whose idle connections cannot be closed", name, client.Transport)
		}
		if proxy, err := transport.Proxy(request); proxy != nil || err != nil {
			t.Errorf("%s: the proxy is %s, %v", name, proxy, err)
		}
	}
}
