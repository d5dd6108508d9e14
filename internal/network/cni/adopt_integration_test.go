//go:build integration

package cni_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// formerConf is not in the directory of configurations.
const formerConf = `{"cniVersion":"0.4.0","name":"former","plugins":[{"type":"fake","from":"former","capabilities":{"portMappings":true}}]}`

// cache writes what libcni keeps of an ADD of another runtime.
func (l *lab) cache(network, conf string, att *network.Attachment) (file string) {
	l.t.Helper()
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": att.SandboxID, "config": []byte(conf), "ifName": "eth0", "networkName": network,
		"netns": "/proc/4711/ns/net",
		"cniArgs": [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", att.Namespace},
			{"K8S_POD_NAME", att.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", att.SandboxID},
		},
		"capabilityArgs": map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
		"result": map[string]any{
			"cniVersion": "0.4.0", "interfaces": []map[string]any{{"name": "eth0", "sandbox": "/proc/4711/ns/net"}},
			"ips": []map[string]any{{"version": "4", "address": "10.42.0.7/24", "interface": 0}},
		},
	})
	if err == nil {
		err = os.MkdirAll(l.path("former", "results"), 0o700)
	}
	file = "former/results/" + network + "-" + att.SandboxID + "-eth0"
	if err == nil {
		err = os.WriteFile(l.path(file), text, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return l.path(file)
}

func (l *lab) adopt(n network.Adopter, att *network.Attachment) string {
	l.t.Helper()
	result, err := n.Adopt(l.t.Context(), att)
	if err != nil {
		l.t.Fatal(err)
	}
	if result == nil || len(result.IPs) == 0 {
		return ""
	}
	return result.IPs[0].String()
}

// TestAdoptedAttachment: DEL gets the configuration, the arguments and the result of the ADD that
// another runtime ran, and nothing of it is left in that runtime's cache.
func TestAdoptedAttachment(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	cfg := l.config()
	cfg.FormerCacheDir = l.path("former")
	n := l.open(cfg)
	att := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	files := []string{l.cache("former", formerConf, att), l.cache("cni-loopback", formerConf, att)}
	for range 2 {
		if got := l.adopt(n, att); got != "10.42.0.7" {
			t.Errorf("address %q", got)
		}
	}
	if _, err := n.Attach(t.Context(), l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})); !errors.Is(err, errs.Exists) {
		t.Errorf("another pod with its host port: %v", err)
	}
	n.Close()
	n = l.open(cfg)
	defer n.Close()
	if got := l.verbs(); got != "" {
		t.Errorf("an adoption called plugins: %q", got)
	}
	if err := errors.Join(n.Detach(t.Context(), att), n.Detach(t.Context(), att)); err != nil {
		t.Fatal(err)
	}
	if got := l.verbs(); got != "DEL" {
		t.Errorf("the plugin saw %q, want one DEL", got)
	}
	calls, _ := os.ReadFile(l.path("calls"))
	want := att.SandboxID + " " + att.NetNS + " IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=" + att.SandboxID + "\n"
	if !strings.Contains(string(calls), want) {
		t.Errorf("calls %s lack %s", calls, want)
	}
	input, _ := os.ReadFile(l.path("input.DEL"))
	for _, part := range []string{`"from":"former"`, `"name":"former"`, `"10.42.0.7/24"`, `"hostPort":8080`} {
		if !strings.Contains(string(input), part) {
			t.Errorf("DEL got %s, without %s", input, part)
		}
	}
	for _, file := range files {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", file, err)
		}
	}
	if left := l.records(); left != 0 {
		t.Errorf("%d records are left", left)
	}
}

// TestAdoptedKubenet: kubenet attached pods with the configuration of one plugin.
func TestAdoptedKubenet(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	cfg := l.config()
	cfg.FormerCacheDir = l.path("former")
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	file := l.cache("kubenet", `{"cniVersion":"0.4.0","name":"kubenet","type":"fake","from":"kubenet"}`, att)
	if got := l.adopt(n, att); got != "10.42.0.7" {
		t.Errorf("address %q", got)
	}
	if err := n.Detach(t.Context(), att); err != nil || l.verbs() != "DEL" {
		t.Errorf("%v, %q", err, l.verbs())
	}
	if input, _ := os.ReadFile(l.path("input.DEL")); !strings.Contains(string(input), `"from":"kubenet"`) {
		t.Errorf("DEL got %s", input)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", file, err)
	}
}

// TestAdoptionWithoutCache: a pod of an older runtime is detached with the configuration that is
// in use, and its address comes from its interface.
func TestAdoptionWithoutCache(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	cfg := l.config()
	cfg.FormerCacheDir = l.path("former")
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	for _, args := range [][]string{{"link", "add", "eth0", "type", "veth", "peer", "name", "eth1"}, {"addr", "add", "10.42.0.8/24", "dev", "eth0"}, {"link", "set", "eth0", "up"}} {
		l.run(att.NetNS, "ip", args...)
	}
	if got := l.adopt(n, att); got != "10.42.0.8" {
		t.Errorf("without a configuration: address %q", got)
	}
	if err := n.Detach(t.Context(), att); err != nil || l.verbs() != "" {
		t.Errorf("without a configuration: %v, %q", err, l.verbs())
	}
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	if got := l.adopt(n, att); got != "10.42.0.8" {
		t.Errorf("with one: address %q", got)
	}
	if err := n.Detach(t.Context(), att); err != nil || l.verbs() != "DEL" {
		t.Errorf("with one: %v, %q", err, l.verbs())
	}
	ended := l.pod()
	ended.NetNS = ""
	if got := l.adopt(n, ended); got != "" {
		t.Errorf("a pod that the other runtime has detached: address %q", got)
	}
	if err := n.Detach(t.Context(), ended); err != nil || l.verbs() != "DEL" {
		t.Errorf("a pod that the other runtime has detached: %v, %q", err, l.verbs())
	}
}
