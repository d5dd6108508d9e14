package podyaml

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

const podHead = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
`

func TestFaultsNameTheirField(t *testing.T) {
	const one = podHead + `  containers:
    - name: a
      image: x
`
	for want, text := range map[string]string{
		`line 1: kind: berth does not run "v1 Endpoints"`:                   "kind: Endpoints\napiVersion: v1\n",
		`kind: it is missing; a pod has apiVersion: v1 and kind: Pod`:       "apiVersion: v1\nmetadata: {name: x}\n",
		`apiVersion: it is missing; a pod has apiVersion: v1 and kind: Pod`: "kind: Pod\nmetadata: {name: x}\n",
		`line 13: metadata.name: "default/web" is the name of two`:          one + "---\n" + one,
		"line 11: spec.containers[0].lifecycle.preStop: a handler has":      one + "      lifecycle:\n        stopSignal: SIGINT\n        preStop: {}\n",
		"line 10: spec.containers[0].volumeMounts[0].subPath: \"../x\"":     one + "      volumeMounts:\n        - {name: v, mountPath: /x, subPath: ../x}\n  volumes: [{name: v}]\n",
		"serviceAccountToken: this field is not honoured: a token":          one + "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n",
		"spec.securityContext.windowsOptions: this field":                   one + "  securityContext: {windowsOptions: {hostProcess: true}}\n",
		`line 9: spec.hostNetwork: "maybe": want true or false`:             one + "  hostNetwork: maybe\n",
		"spec.hostAliases[0].ip":                                            one + "  hostAliases: [{ip: none, hostnames: [a]}]\n",
		`line 8: spec.template.spec.containers[0].volumeDevices`:            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n      containers:\n        - {name: a, image: x, volumeDevices: [{name: v, devicePath: /dev/x}]}\n",
		"spec.template.spec.restartPolicy: a Job needs":                     "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: a, image: x}]}}}\n",
		`yaml: line 3:`:                                         "a: b\n---\na: {\n",
		"no document of kind Pod":                               "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n",
		`unknown field "spec.containerz"`:                       podHead + "  containerz: []\n",
		"spec.containers: there is no container":                podHead + "  restartPolicy: Never\n",
		"spec.containers[0].resources.limits.nvidia.com/gpu":    one + "      resources: {limits: {nvidia.com/gpu: 1}}\n",
		"spec.volumes[0].nfs: this field":                       one + "  volumes: [{name: v, nfs: {server: s, path: /}}]\n",
		`there is no ConfigMap "m" in the file`:                 one + "  volumes: [{name: v, configMap: {name: m}}]\n",
		`there is no Secret "s" in the file`:                    one + "      envFrom: [{secretRef: {name: s}}]\n",
		`there is no volume "nosuch"`:                           one + "      volumeMounts: [{name: nosuch, mountPath: /x}]\n",
		`spec.restartPolicy: "Sometimes"`:                       one + "  restartPolicy: Sometimes\n",
		"spec.volumes[0].hostPath.path: \"x\" is not absolute":  one + "  volumes: [{name: v, hostPath: {path: x}}]\n",
		"livenessProbe: a probe has one of":                     one + "      livenessProbe: {periodSeconds: 1}\n",
		`container a has no port named "http"`:                  one + "      livenessProbe: {httpGet: {port: http}}\n",
		"livenessProbe.successThreshold: it must be 1":          one + "      livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}\n",
		`"a" is the name of two containers`:                     one + "    - {name: a, image: x}\n",
		"an init container that is not a sidecar has no probes": one + "  initContainers: [{name: i, image: x, readinessProbe: {tcpSocket: {port: 1}}}]\n",
		`fieldRef "spec.nope" is not honoured`:                  one + "      env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nope}}}]\n",
		"metadata.uid":                                          strings.Replace(one, "{name: web}", "{name: web, uid: ../../etc}", 1),
		"is in namespace other, the pod in":                     one + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: other}\n",
	} {
		_, err := Parse([]byte(text))
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestValuesOfAnotherType: the error for a value of the wrong type has its line and path, also in a
// list. The message contains no Go type names.
func TestValuesOfAnotherType(t *testing.T) {
	const text = podHead + `  containers:
    - name: a
      image: x
    - name: b
      image: x
      command: sh
      env:
        - name: A
          value: "1"
        - name: PORT
          value: 8080
      ports:
        - containerPort: "80"
      resources:
        limits: {cpu: fast}
      livenessProbe:
        httpGet:
          port: true
          httpHeaders: [{name: A, value: yes}]
  nodeSelector:
    gpu: true
  volumes: none
  securityContext: []
`
	_, err := Parse([]byte(text))
	if !errors.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`line 11: spec.containers[1].command: "sh": want a list`,
		`line 16: spec.containers[1].env[1].value: 8080: want a string, "8080"`,
		`line 18: spec.containers[1].ports[0].containerPort: "80": want a whole number`,
		`line 20: spec.containers[1].resources.limits.cpu: "fast": quantities must match`,
		`line 23: spec.containers[1].livenessProbe.httpGet.port: true: want a whole number or a string`,
		`line 24: spec.containers[1].livenessProbe.httpGet.httpHeaders[0].value: true: want a string, "true"`,
		`line 26: spec.nodeSelector.gpu: true: want a string, "true"`,
		`line 27: spec.volumes: "none": want a list`,
		`line 28: spec.securityContext: []: want an object`,
	} {
		if !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%s is not said in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "Go ") || strings.Count(err.Error(), "\n") != 8 {
		t.Errorf("more is said:\n%v", err)
	}
	_, err = Parse([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: two\n"))
	if err == nil || err.Error() != `line 5: spec.replicas: "two": want a whole number` {
		t.Errorf("a workload: %v", err)
	}
}

// TestSecretsAreNotTold: the error for an invalid value of a Secret does not contain the value,
// because errors end up in logs.
func TestSecretsAreNotTold(t *testing.T) {
	const text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  pin: 48151623\ndata:\n  key: \"hush hush\"\n"
	_, err := Parse([]byte(text))
	if err == nil || strings.Contains(err.Error(), "48151623") || strings.Contains(err.Error(), "hush") {
		t.Errorf("told: %v", err)
	}
	for _, want := range []string{"line 5: stringData.pin: …: want a string", "line 7: data.key: …: illegal base64"} {
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

func TestAllFaultsAreToldTogether(t *testing.T) {
	_, err := Parse([]byte(podHead + `  ephemeralContainers: [{name: e}]
  resourceClaims: [{name: x}]
  containers:
    - {name: a, image: x, workingDir: /, ports: [{containerPort: 1}], volumeDevices: [{name: a, devicePath: /dev/x}]}
`))
	for _, want := range []string{"spec.ephemeralContainers", "spec.resourceClaims", "spec.containers[0].volumeDevices"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

func TestPageShowsTheExample(t *testing.T) {
	page, err := os.ReadFile("../../../docs/pods.md")
	example, exampleErr := os.ReadFile("../../../examples/sidecar-pod.yaml")
	if err := errors.Join(err, exampleErr); err != nil {
		t.Fatal(err)
	}
	if _, text, _ := strings.Cut(string(example), "apiVersion:"); !strings.Contains(string(page), "apiVersion:"+text) {
		t.Error("docs/pods.md does not show examples/sidecar-pod.yaml as it is")
	}
}

// TestTestdataIsTheExample: the pod of the tests is the one that people run first.
func TestTestdataIsTheExample(t *testing.T) {
	copied, err := os.ReadFile("testdata/hello.yaml")
	example, exampleErr := os.ReadFile("../../../examples/hello-pod.yaml")
	if err := errors.Join(err, exampleErr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(copied, example) {
		t.Error("testdata/hello.yaml differs from examples/hello-pod.yaml: copy that again, and write hello.golden.json again")
	}
}
