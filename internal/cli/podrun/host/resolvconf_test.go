package host

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestHostResolvConf(t *testing.T) {
	got := parseResolvConf("# x\nnameserver 192.0.2.1\ndomain old\nsearch a b\noptions ndots:2 rotate\nnameserver 192.0.2.2\n")
	want := &runtimeapi.DNSConfig{Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"a", "b"}, Options: []string{"ndots:2", "rotate"}}
	if got.String() != want.String() {
		t.Errorf("got %v", got)
	}
}
