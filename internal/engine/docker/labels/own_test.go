package labels

import "testing"

func TestHasOwnName(t *testing.T) {
	web := map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop"}
	for _, c := range []struct {
		kind  string
		names []string
		of    map[string]string
		want  bool
	}{
		{TypeContainer, []string{"/k8s_main_web_shop_uid_0"}, web, true},
		{TypeContainer, []string{"/happy_almeida", "/k8s_main_web_shop_uid_0_0123abcd"}, web, true},
		{TypeSandbox, []string{"/k8s_POD_web_shop_uid_0"}, web, true},
		{TypeContainer, []string{"/k8s_main_web_shop_uid_0"}, nil, true}, // of a client without these labels
		{TypeContainer, []string{"/k8s_main_" + part("a b") + "_shop_uid_0"}, nil, true},
		{TypeContainer, []string{"/happy_almeida"}, web, false},
		{TypeContainer, nil, web, false},
		{TypeContainer, []string{"/k8s_main_other_shop_uid_0"}, web, false},
		{TypeContainer, []string{"/k8s_main_web_other_uid_0"}, web, false},
		{TypeContainer, []string{"/k8s_POD_web_shop_uid_0"}, web, false},
		{TypeSandbox, []string{"/k8s_main_web_shop_uid_0"}, web, false},
	} {
		of := map[string]string{Type: c.kind}
		for key, value := range c.of {
			of[key] = value
		}
		if got := HasOwnName(of, c.names); got != c.want {
			t.Errorf("%s %v of %v: %v", c.kind, c.names, c.of, got)
		}
	}
}

func TestIsInPlace(t *testing.T) {
	for _, c := range []struct {
		kind, mode string
		want       bool
	}{
		{TypeSandbox, "none", true},
		{TypeSandbox, "host", true},
		{TypeSandbox, "bridge", false},
		{TypeSandbox, "default", false},
		{TypeContainer, "container:" + dockerID, true},
		{TypeContainer, "host", true},
		{TypeContainer, "none", false},
		{TypeContainer, "container:" + sandboxID, false},
		{TypeContainer, "container:", false},
	} {
		if got := IsInPlace(map[string]string{Type: c.kind, SandboxDockerID: dockerID}, c.mode); got != c.want {
			t.Errorf("%s with network %s: %v", c.kind, c.mode, got)
		}
	}
}
