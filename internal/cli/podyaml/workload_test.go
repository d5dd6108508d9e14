package podyaml

import (
	"strings"
	"testing"
	"time"
)

// workloadOf returns a document of a kind with a template, and with more fields in its spec.
func workloadOf(kind, more string) string {
	group := "apps/v1"
	if kind == "Job" {
		group = "batch/v1"
	}
	return "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: w}\nspec:\n" + more +
		"  template:\n    metadata: {labels: {app: w}}\n    spec: {restartPolicy: Never, containers: [{name: a, image: x, ports: [{name: http, containerPort: 80}]}]}\n"
}

// TestFieldsOfWorkloads: berth reports each field that it does not honour in a document that
// creates or serves pods. A text that begins with ! is a fault, others are notes, "" means no
// report.
func TestFieldsOfWorkloads(t *testing.T) {
	service := func(spec string) string {
		return workloadOf("Deployment", "") + "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec:\n  selector: {app: w}\n" + spec
	}
	for _, c := range []struct{ want, text string }{
		{"spec.minReadySeconds (line 5)", workloadOf("Deployment", "  minReadySeconds: 5\n")},
		{"spec.strategy.type (line 5)", workloadOf("Deployment", "  strategy: {type: Recreate}\n")},
		{"", workloadOf("Deployment", "  revisionHistoryLimit: 10\n  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}\n")},
		{"line 5: Deployment w makes no pods, because of spec.paused", workloadOf("Deployment", "  paused: true\n") + "---\n" + workloadOf("DaemonSet", "")},
		{"line 5: Job w makes no pods, because of spec.suspend", workloadOf("Job", "  suspend: true\n") + "---\n" + workloadOf("DaemonSet", "")},
		{"line 5: Job w makes no pods, because of spec.parallelism", workloadOf("Job", "  parallelism: 0\n") + "---\n" + workloadOf("DaemonSet", "")},
		{"!line 5: spec.selector: it does not match", workloadOf("Deployment", "  selector: {matchLabels: {app: other}}\n")},
		{"!line 5: spec.selector: it does not match", workloadOf("StatefulSet", "  selector: {matchLabels: {app: other}}\n")},
		{"!line 5: spec.selector: it does not match", workloadOf("DaemonSet", "  selector: {matchExpressions: [{key: app, operator: DoesNotExist}]}\n")},
		{"", workloadOf("StatefulSet", "  minReadySeconds: 5\n")},
		{"!line 5: spec.minReadySeconds: it is negative", workloadOf("StatefulSet", "  minReadySeconds: -5\n")},
		{
			"spec.persistentVolumeClaimRetentionPolicy.whenDeleted (line 5)",
			workloadOf("StatefulSet", "  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}\n"),
		},
		{
			"!line 6: spec.volumeClaimTemplates[0].spec.volumeMode: this field is not honoured",
			workloadOf("StatefulSet", "  volumeClaimTemplates:\n    - {metadata: {name: c}, spec: {volumeMode: Block}}\n"),
		},
		{"spec.ttlSecondsAfterFinished (line 5)", workloadOf("Job", "  ttlSecondsAfterFinished: 5\n")},
		{"!line 5: spec.podFailurePolicy: this field is not honoured", workloadOf("Job", "  podFailurePolicy: {rules: []}\n")},
		{"spec.type (line 14)", service("  type: NodePort\n")},
		{"spec.ports[0].nodePort (line 14)", service("  ports: [{port: 80, nodePort: 30080}]\n")},
		{"line 10: Service s: pods reach its pods at their port 80, not at 8080", service("  ports: [{port: 8080, targetPort: 80}]\n")},
		{"line 10: Service s: pods reach its pods at their port http, not at 8080", service("  ports: [{port: 8080, targetPort: http}]\n")},
		{"", service("  ports: [{port: 80, targetPort: http}]\n")},
		{"", service("  clusterIP: None\n  sessionAffinity: None\n  ports: [{port: 80}]\n")},
		{"!spec.nfs: this field is not honoured", "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {nfs: {server: s, path: /}}\n"},
		{"!spec.dataSource: this field is not honoured: what fills", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: v}\nspec: {dataSource: {kind: S, name: s}}\n"},
	} {
		m, err := Parse([]byte(c.text))
		fault, isFault := strings.CutPrefix(c.want, "!")
		switch {
		case isFault && (err == nil || !strings.Contains(err.Error(), fault)):
			t.Errorf("want the fault %q, got %v", fault, err)
		case isFault:
		case err != nil:
			t.Errorf("want %q, got %v", c.want, err)
		case c.want == "" && len(m.Notes) > 0, !strings.Contains(strings.Join(m.Notes, "\n"), c.want):
			t.Errorf("want the note %q, got %q", c.want, m.Notes)
		}
	}
}

func TestMinReadySecondsOfAStatefulSet(t *testing.T) {
	m, err := Parse([]byte(workloadOf("StatefulSet", "  minReadySeconds: 5\n")))
	if err != nil {
		t.Fatal(err)
	}
	if w := m.Workloads[0]; !w.Ordered || w.MinReady != 5*time.Second {
		t.Errorf("got %+v", w)
	}
}

// TestClaimsAreBoundAsTheySay: a claim is bound by its selector, its mode and the namespace in
// claimRef.
func TestClaimsAreBoundAsTheySay(t *testing.T) {
	const volume = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v, labels: {disk: fast}}\nspec: {hostPath: {path: /disk}, "
	const claim = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {"
	const pod = "---\n" + podHead + "  containers: [{name: a, image: x}]\n  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n"
	for _, c := range []struct{ volume, claim, want string }{
		{"}\n", "}\n", "/disk"},
		{"}\n", "selector: {matchLabels: {disk: fast}}}\n", "/disk"},
		{"}\n", "selector: {matchLabels: {disk: slow}}}\n", "/claims/default_c"},
		{"volumeMode: Block}\n", "}\n", "/claims/default_c"},
		{"claimRef: {name: c}}\n", "}\n", "/disk"},
		{"claimRef: {name: c, namespace: other}}\n", "volumeMode: Filesystem}\n", "/claims/default_c"},
	} {
		m, err := Parse([]byte(volume + c.volume + claim + c.claim + pod))
		if err != nil {
			t.Errorf("%s%s: %v", c.volume, c.claim, err)
			continue
		}
		volumes, err := m.Pods()[0].Volumes(testFacts())
		if err != nil || volumes[0].Path != c.want {
			t.Errorf("%s%s: got %+v, %v", c.volume, c.claim, volumes, err)
		}
	}
}

// TestWhatWorkloadsNeedAKeeperFor: -d refuses workloads that need a keeper.
func TestWhatWorkloadsNeedAKeeperFor(t *testing.T) {
	for text, want := range map[string]string{
		workloadOf("Job", ""): "line 4: spec.backoffLimit: 6 (6 is the default; 0 works with -d)",
		workloadOf("Job", "  backoffLimit: 0\n  completions: 3\n  parallelism: 2\n  activeDeadlineSeconds: 9\n"): "line 7: spec.parallelism: 2 of 3 completions line 8: spec.activeDeadlineSeconds",
		workloadOf("Job", "  backoffLimit: 0\n"):            "",
		workloadOf("StatefulSet", "  minReadySeconds: 1\n"): "line 5: spec.minReadySeconds",
		workloadOf("Deployment", "  replicas: 3\n"):         "",
	} {
		m, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(m.Workloads[0].ForegroundFields(), " "); got != want {
			t.Errorf("%s\ngot %q, want %q", text, got, want)
		}
	}
}

// TestClaimOfAHostPathIsTheHosts: as with a kubelet, a pod changes neither the group nor the labels of a path of the
// host, behind a claim either, and of a claim that it only reads.
func TestClaimOfAHostPathIsTheHosts(t *testing.T) {
	const volume = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: "
	const claim = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {}\n---\n"
	for _, c := range []struct {
		volume, source string
		host, changed  bool
	}{
		{volume + "{hostPath: {path: /disk}}\n" + claim, "{claimName: c}", true, false},
		{volume + "{local: {path: /disk}}\n" + claim, "{claimName: c}", false, true},
		{volume + "{local: {path: /disk}}\n" + claim, "{claimName: c, readOnly: true}", false, false},
		{"", "{claimName: c}", false, true},
	} {
		m, err := Parse([]byte(c.volume + podHead + "  securityContext: {fsGroup: 1000}\n" +
			"  containers: [{name: a, image: x, volumeMounts: [{name: v, mountPath: /v}]}]\n" +
			"  volumes: [{name: v, persistentVolumeClaim: " + c.source + "}]\n"))
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		b := m.Pods()[0]
		volumes, err := b.Volumes(testFacts())
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if v := volumes[0]; (v.HostPath != nil) != c.host || (v.GID != nil) != c.changed {
			t.Errorf("%+v: the volume is %+v", c, v)
		}
		made, err := b.Container(&b.Pod.Spec.Containers[0], 0, testFacts())
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if got := made.Config.Mounts[0]; got.ContainerPath != "/v" || got.SelinuxRelabel != c.changed {
			t.Errorf("%+v: the mount is %v", c, got)
		}
	}
}
