package labels

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// dockerNames are the names that a Docker Engine accepts.
var dockerNames = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)

func pod(name, namespace, uid string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{
		Name: name, Namespace: namespace, Uid: uid, Attempt: attempt,
	}}
}

func container(name string, attempt uint32) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}}
}

func TestNames(t *testing.T) {
	web := pod("web-0.x", "default", "0b3c-1", 4294967295)
	for got, want := range map[string]string{
		SandboxName(web): "k8s_POD_web-0.x_default_0b3c-1_4294967295",
		// The attempt is the container's own.
		ContainerName(container("server", 3), web):                "k8s_server_web-0.x_default_0b3c-1_3",
		SandboxName(pod("a", "b", "", 0)):                         "k8s_POD_a_b__0",
		SandboxName(pod("a b/ä", "n", "u", 0)):                    "k8s_POD_a-b---1bb5c7b6_n_u_0",
		SandboxName(pod("a_b", "n", "u", 0)):                      "k8s_POD_a-b-648fa9b3_n_u_0",
		ContainerName(container("a.b", 0), pod("p", "n", "u", 0)): "k8s_a-b-2e7336dc_p_n_u_0",
		ContainerName(container("POD", 0), pod("p", "n", "u", 0)): "k8s_POD-6aa58455_p_n_u_0",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestNamesFitDocker(t *testing.T) {
	long := strings.Repeat("x", 300)
	seen := map[string]string{}
	for _, part := range []string{
		"a", "a_b", "a-b", "a b", "a/b", "ä", "日本", "\xff\xfe", ".", "-", "_", "POD", "k8s",
		"server.6d00e006", long, long + "y", long[:maxPart], strings.Repeat("ä", 200),
	} {
		for _, name := range []string{
			SandboxName(pod(part, "n", "u", 1)),
			SandboxName(pod("p", part, "u", 1)),
			SandboxName(pod("p", "n", part, 1)),
			ContainerName(container(part, 1), pod("p", "n", "u", 0)),
		} {
			if before, taken := seen[name]; taken {
				t.Errorf("%q and %q have the same name %s", before, part, name)
			}
			seen[name] = part
			if !dockerNames.MatchString(name) || len(name) > maxPart+40 {
				t.Errorf("%q: Docker would not take %s", part, name)
			}
			if _, err := Parse(name); err != nil {
				t.Errorf("%q: %v", part, err)
			}
		}
	}
}

func TestWithSuffix(t *testing.T) {
	base := SandboxName(pod("p", "n", "u", 2))
	once := WithSuffix(base)
	twice := WithSuffix(once)
	if once == twice {
		t.Errorf("the suffix of %s is not random", once)
	}
	for _, name := range []string{once, twice} {
		p, err := Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if want := base + "_" + p.Suffix; len(p.Suffix) != 8 || name != want {
			t.Errorf("got %s, want %s", name, want)
		}
	}
}

func TestParse(t *testing.T) {
	for name, want := range map[string]Parsed{
		"k8s_POD_p_n_u_0":          {Pod: "p", Namespace: "n", UID: "u"},
		"/k8s_POD_p.q_n_u_12":      {Pod: "p.q", Namespace: "n", UID: "u", Attempt: 12},
		"k8s_c_p_n_u_4294967295":   {Container: "c", Pod: "p", Namespace: "n", UID: "u", Attempt: 4294967295},
		"k8s_c_p_n__0":             {Container: "c", Pod: "p", Namespace: "n"},
		"/k8s_c_p_n_u_0_0123abcd":  {Container: "c", Pod: "p", Namespace: "n", UID: "u", Suffix: "0123abcd"},
		"k8s_POD_p_n_u_1_00000000": {Pod: "p", Namespace: "n", UID: "u", Attempt: 1, Suffix: "00000000"},
		"k8s_POD-21212121_p_n_u_0": {Container: "POD-21212121", Pod: "p", Namespace: "n", UID: "u"},
	} {
		got, err := Parse(name)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{
		"", "/", "k8s", "happy_almeida", "k8s_POD_p_n_u", "k8s_POD_p_n_u_0_0123abcd_0123abcd",
		"K8S_POD_p_n_u_0", "xk8s_POD_p_n_u_0", "//k8s_POD_p_n_u_0", "/other/k8s_POD_p_n_u_0",
		"k8s__p_n_u_0", "k8s_c__n_u_0", "k8s_c_p__u_0",
		"k8s_c_p_n_u_", "k8s_c_p_n_u_-1", "k8s_c_p_n_u_+1", "k8s_c_p_n_u_01", "k8s_c_p_n_u_4294967296", "k8s_c_p_n_u_x",
		"k8s_c_p_n_u_0_", "k8s_c_p_n_u_0_123", "k8s_c_p_n_u_0_0123ABCD", "k8s_c_p_n_u_0_0123abcg", "k8s_c_p_n_u_0_0123abcd0",
		"k8s_c_p q_n_u_0", "k8s_c_p_n_u/v_0",
		// A kubelet before 1.6.
		"k8s_POD.6d00e006_p_n_u_12345678", "/k8s_server.1f2a3b4c_p_n_u_5e6f7a8b",
	} {
		if got, err := Parse(name); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: got %+v, %v, want Invalid", name, got, err)
		}
	}
}

// FuzzParse: a name that is accepted has all its parts in the result.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"/k8s_POD_p_n_u_0", "k8s_c_p_n_u_7_0123abcd", "k8s_c_p_n__0", "k8s_POD.6d00e006_p_n_u_12345678", "a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, err := Parse(name)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %v is not Invalid", name, err)
			}
			return
		}
		sandbox := pod(p.Pod, p.Namespace, p.UID, p.Attempt)
		again := SandboxName(sandbox)
		if p.Container != "" {
			again = ContainerName(container(p.Container, p.Attempt), sandbox)
		}
		if p.Suffix != "" {
			again += "_" + p.Suffix
		}
		// Parts longer than Kubernetes allows are read as they are, and written shorter.
		if long := len(name) > maxPart; !long && again != strings.TrimPrefix(name, "/") {
			t.Errorf("%q became %+v, which is %q", name, p, again)
		}
	})
}

// FuzzNames: Docker and Parse accept every name, and the parts that need no replacement come
// back.
func FuzzNames(f *testing.F) {
	f.Add("server", "web-0", "default", "0b3c", uint32(1))
	f.Add("POD", "a_b", "日本", "", uint32(0))
	f.Fuzz(func(t *testing.T, ctr, name, namespace, uid string, attempt uint32) {
		if ctr == "" || name == "" || namespace == "" {
			return // refused before
		}
		got := ContainerName(container(ctr, attempt), pod(name, namespace, uid, 0))
		p, err := Parse(WithSuffix(got))
		if err != nil || !dockerNames.MatchString(got) {
			t.Fatalf("%s: %v", got, err)
		}
		if p.Attempt != attempt || p.Container == "" {
			t.Errorf("%s became %+v", got, p)
		}
		for original, part := range map[string]string{name: p.Pod, namespace: p.Namespace, uid: p.UID} {
			if kept := !strings.ContainsFunc(original, isRefused) && len(original) <= maxPart; kept != (part == original) {
				t.Errorf("%s became %s in %s", strconv.Quote(original), part, got)
			}
		}
	})
}
