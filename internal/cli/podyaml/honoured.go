package podyaml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// honoured lists every field that `berth pod run` honours, with all below it. A
// field of a container stands for containers and initContainers alike.
const honoured = `
apiVersion kind
metadata.name metadata.namespace metadata.uid metadata.labels metadata.annotations
spec.restartPolicy spec.terminationGracePeriodSeconds spec.activeDeadlineSeconds spec.runtimeClassName
spec.hostname spec.hostNetwork spec.hostPID spec.hostIPC spec.shareProcessNamespace
spec.dnsPolicy spec.dnsConfig
spec.securityContext.runAsUser spec.securityContext.runAsGroup spec.securityContext.runAsNonRoot
spec.securityContext.supplementalGroups spec.securityContext.fsGroup spec.securityContext.sysctls
spec.securityContext.seccompProfile
spec.volumes[].name spec.volumes[].hostPath
spec.volumes[].emptyDir
spec.volumes[].configMap spec.volumes[].secret
spec.containers[].name spec.containers[].image spec.containers[].imagePullPolicy
spec.containers[].command spec.containers[].args spec.containers[].workingDir
spec.containers[].env[].name spec.containers[].env[].value
spec.containers[].env[].valueFrom.configMapKeyRef spec.containers[].env[].valueFrom.secretKeyRef
spec.containers[].env[].valueFrom.fieldRef
spec.containers[].envFrom
spec.containers[].ports
spec.containers[].volumeMounts[].name spec.containers[].volumeMounts[].mountPath
spec.containers[].volumeMounts[].readOnly spec.containers[].volumeMounts[].subPath
spec.containers[].volumeMounts[].mountPropagation
spec.containers[].resources.limits.cpu spec.containers[].resources.limits.memory
spec.containers[].resources.requests.cpu spec.containers[].resources.requests.memory
spec.containers[].livenessProbe spec.containers[].readinessProbe spec.containers[].startupProbe
spec.containers[].stdin spec.containers[].stdinOnce spec.containers[].tty
spec.containers[].restartPolicy
spec.containers[].securityContext.runAsUser spec.containers[].securityContext.runAsGroup
spec.containers[].securityContext.runAsNonRoot spec.containers[].securityContext.privileged
spec.containers[].securityContext.capabilities spec.containers[].securityContext.readOnlyRootFilesystem
spec.containers[].securityContext.allowPrivilegeEscalation spec.containers[].securityContext.procMount
spec.containers[].securityContext.seccompProfile
`

// neutral lists fields that may stand with one value, the one that asks for nothing:
// what the API server fills in, so that `kubectl get -o yaml` can be run.
const neutral = `
spec.schedulerName default-scheduler
spec.enableServiceLinks true
spec.enableServiceLinks false
spec.automountServiceAccountToken false
spec.serviceAccountName default
spec.serviceAccount default
spec.preemptionPolicy PreemptLowerPriority
spec.priority 0
spec.setHostnameAsFQDN false
spec.hostUsers true
spec.containers[].terminationMessagePath /dev/termination-log
spec.containers[].terminationMessagePolicy File
spec.containers[].volumeMounts[].recursiveReadOnly Disabled
metadata.creationTimestamp null
`

// fields is honoured and neutral, ready to be asked.
type fields struct {
	honoured map[string]bool
	neutral  map[string][]string
	// inner are the proper prefixes of both.
	inner map[string]bool
}

func parseFields() *fields {
	f := &fields{honoured: map[string]bool{}, neutral: map[string][]string{}, inner: map[string]bool{}}
	for _, path := range strings.Fields(honoured) {
		f.honoured[path] = true
		f.addInner(path)
	}
	for _, line := range strings.Split(strings.TrimSpace(neutral), "\n") {
		path, value, _ := strings.Cut(line, " ")
		f.neutral[path] = append(f.neutral[path], value)
		f.addInner(path)
	}
	return f
}

func (f *fields) addInner(path string) {
	for i, r := range path {
		if r == '.' || r == '[' {
			f.inner[path[:i]] = true
		}
	}
}

// checkHonoured names every field of a Pod document that is not honoured.
func checkHonoured(tree map[string]any) error {
	f := parseFields()
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		faults = append(faults, f.check(name, name, tree[name]))
	}
	return errors.Join(faults...)
}

// check looks at one field: path as it is written, rule as the lists spell it.
func (f *fields) check(path, rule string, value any) error {
	rule = strings.Replace(rule, "spec.initContainers", "spec.containers", 1)
	if f.honoured[rule] || isNothing(value) || rule == "status" {
		return nil
	}
	if allowed := f.neutral[rule]; allowed != nil {
		if slices.Contains(allowed, fmt.Sprint(value)) {
			return nil
		}
		return fmt.Errorf("%s: only %s is honoured: %w", path, strings.Join(allowed, " or "), errs.Invalid)
	}
	if !f.inner[rule] {
		return fmt.Errorf("%s: this field is not honoured: %w", path, errs.Invalid)
	}
	var faults []error
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			faults = append(faults, f.check(path+"."+name, rule+"."+name, v[name]))
		}
	case []any:
		for i, item := range v {
			inner, ok := item.(map[string]any)
			if !ok {
				continue // the strict decoder has refused it
			}
			for _, name := range slices.Sorted(maps.Keys(inner)) {
				faults = append(faults, f.check(fmt.Sprintf("%s[%d].%s", path, i, name), rule+"[]."+name, inner[name]))
			}
		}
	}
	return errors.Join(faults...)
}

// isNothing tells of a value that says nothing: null, {} or [].
func isNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
