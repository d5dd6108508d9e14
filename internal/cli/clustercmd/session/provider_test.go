package session

import (
	"strings"
	"testing"
)

// TestTracedCallsHaveNoSecrets: what -v prints of calls of an engine's tool ends in logs of CI.
func TestTracedCallsHaveNoSecrets(t *testing.T) {
	got := strings.Join(withoutSecrets([]string{
		"run", "-e", "HTTPS_PROXY=http://me:geheim@proxy:3128", "--env", "A=geheim", "-e", "B", "--label", "x=y",
		"kubeadm", "join", "--token", "abcdef.geheimgeheim0123", "http://me:geheim@registry.example/v2/",
	}), " ")
	const want = "run -e HTTPS_PROXY=… --env A=… -e B=… --label x=y kubeadm join --token abcdef.… http://…@registry.example/v2/"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
