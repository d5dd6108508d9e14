package podyaml

import (
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
		"no document of kind Pod":                                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n",
		`kind "apps/v1 Deployment"`:                                  "apiVersion: apps/v1\nkind: Deployment\n",
		"a second Pod":                                               one + "---" + one,
		`unknown field "spec.containerz"`:                            podHead + "  containerz: []\n",
		"spec.containers: there is no container":                     podHead + "  restartPolicy: Never\n",
		"spec.nodeSelector: this field is not honoured":              one + "  nodeSelector: {a: b}\n",
		"spec.schedulerName: only default-scheduler":                 one + "  schedulerName: mine\n",
		"spec.containers[0].lifecycle: this field":                   one + "      lifecycle: {preStop: {exec: {command: [x]}}}\n",
		"spec.containers[0].resources.limits.nvidia.com/gpu":         one + "      resources: {limits: {nvidia.com/gpu: 1}}\n",
		"spec.containers[0].env[0].valueFrom.resourceFieldRef":       one + "      env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]\n",
		"spec.volumes[0].nfs: this field":                            one + "  volumes: [{name: v, nfs: {server: s, path: /}}]\n",
		`there is no ConfigMap "m" in the file`:                      one + "  volumes: [{name: v, configMap: {name: m}}]\n",
		`there is no Secret "s" in the file`:                         one + "      envFrom: [{secretRef: {name: s}}]\n",
		`there is no volume "nosuch"`:                                one + "      volumeMounts: [{name: nosuch, mountPath: /x}]\n",
		"subPath: it is honoured in configMap and secret volumes":    one + "      volumeMounts: [{name: v, mountPath: /x, subPath: sub}]\n  volumes: [{name: v}]\n",
		`spec.restartPolicy: "Sometimes"`:                            one + "  restartPolicy: Sometimes\n",
		"spec.dnsConfig: it is honoured with dnsPolicy None only":    one + "  dnsConfig: {nameservers: [1.1.1.1]}\n",
		"spec.volumes[0].hostPath.path: \"x\" is not absolute":       one + "  volumes: [{name: v, hostPath: {path: x}}]\n",
		"livenessProbe: a probe has one of":                          one + "      livenessProbe: {periodSeconds: 1}\n",
		`container a has no port named "http"`:                       one + "      livenessProbe: {httpGet: {port: http}}\n",
		"livenessProbe.successThreshold: it must be 1":               one + "      livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}\n",
		`"a" is the name of two containers`:                          one + "    - {name: a, image: x}\n",
		"spec.containers[0].restartPolicy: it is for initContainers": one + "      restartPolicy: Always\n",
		"an init container that is no sidecar has no probes":         one + "  initContainers: [{name: i, image: x, readinessProbe: {tcpSocket: {port: 1}}}]\n",
		`fieldRef "spec.nope" is not honoured`:                       one + "      env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nope}}}]\n",
		"emptyDir.sizeLimit: it is honoured with medium Memory only": one + "  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n",
		"metadata.uid":                      strings.Replace(one, "{name: web}", "{name: web, uid: ../../etc}", 1),
		"is in namespace other, the pod in": one + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: other}\n",
	} {
		_, err := Parse([]byte(text))
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestAllFaultsAreToldTogether(t *testing.T) {
	_, err := Parse([]byte(podHead + `  affinity: {nodeAffinity: {}}
  nodeName: x
  containers:
    - {name: a, image: x, workingDir: /, ports: [{containerPort: 1}], volumeDevices: [{name: a, devicePath: /dev/x}]}
`))
	for _, want := range []string{"spec.affinity", "spec.nodeName", "spec.containers[0].volumeDevices"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

func TestPageNamesEveryHonouredField(t *testing.T) {
	page, err := os.ReadFile("../../../docs/pods.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(honoured) {
		if !strings.Contains(string(page), "`"+field+"`") {
			t.Errorf("docs/pods.md does not name %s", field)
		}
	}
}

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"":            "",
		"$(A)$(A)":    "11",
		"$$(A)":       "$(A)",
		"$$$(A)":      "$1",
		"$(NOPE)":     "$(NOPE)",
		"$(A":         "$(A",
		"$A ${A} $":   "$A ${A} $",
		"$(B)":        "$(A)",
		"$($(A))":     "$($(A))",
		"x$(A)y$(B)z": "x1y$(A)z",
	} {
		if got := expand(text, values); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
