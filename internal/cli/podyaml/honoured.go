package podyaml

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// honoured lists every field that `berth pod run` honours, with all below it. A
// field of a container stands for containers and initContainers alike.
const honoured = `
apiVersion kind
metadata.name metadata.namespace metadata.uid metadata.labels metadata.annotations
spec.restartPolicy spec.terminationGracePeriodSeconds spec.activeDeadlineSeconds spec.runtimeClassName
spec.hostname spec.subdomain spec.setHostnameAsFQDN spec.hostnameOverride spec.hostAliases
spec.hostNetwork spec.hostPID spec.hostIPC spec.hostUsers spec.shareProcessNamespace
spec.dnsPolicy spec.dnsConfig spec.os spec.imagePullSecrets
spec.resources.limits spec.resources.requests spec.overhead
spec.securityContext.runAsUser spec.securityContext.runAsGroup spec.securityContext.runAsNonRoot
spec.securityContext.supplementalGroups spec.securityContext.supplementalGroupsPolicy
spec.securityContext.fsGroup spec.securityContext.fsGroupChangePolicy spec.securityContext.sysctls
spec.securityContext.seccompProfile spec.securityContext.appArmorProfile
spec.securityContext.seLinuxOptions spec.securityContext.seLinuxChangePolicy
spec.volumes[].name spec.volumes[].hostPath spec.volumes[].emptyDir spec.volumes[].configMap
spec.volumes[].secret spec.volumes[].downwardAPI spec.volumes[].persistentVolumeClaim
spec.volumes[].image
spec.volumes[].projected.defaultMode spec.volumes[].projected.defaultUser
spec.volumes[].projected.sources[].configMap spec.volumes[].projected.sources[].secret
spec.volumes[].projected.sources[].downwardAPI
spec.containers[].name spec.containers[].image spec.containers[].imagePullPolicy
spec.containers[].command spec.containers[].args spec.containers[].workingDir
spec.containers[].env[].name spec.containers[].env[].value
spec.containers[].env[].valueFrom.configMapKeyRef spec.containers[].env[].valueFrom.secretKeyRef
spec.containers[].env[].valueFrom.fieldRef spec.containers[].env[].valueFrom.resourceFieldRef
spec.containers[].env[].valueFrom.fileKeyRef
spec.containers[].envFrom
spec.containers[].ports
spec.containers[].volumeMounts[].name spec.containers[].volumeMounts[].mountPath
spec.containers[].volumeMounts[].readOnly spec.containers[].volumeMounts[].recursiveReadOnly
spec.containers[].volumeMounts[].subPath spec.containers[].volumeMounts[].subPathExpr
spec.containers[].volumeMounts[].mountPropagation spec.containers[].volumeMounts[].bindMountOptions
spec.containers[].resources.limits spec.containers[].resources.requests
spec.containers[].resizePolicy
spec.containers[].livenessProbe spec.containers[].readinessProbe spec.containers[].startupProbe
spec.containers[].lifecycle
spec.containers[].terminationMessagePath spec.containers[].terminationMessagePolicy
spec.containers[].stdin spec.containers[].stdinOnce spec.containers[].tty
spec.containers[].restartPolicy spec.containers[].restartPolicyRules
spec.containers[].securityContext.runAsUser spec.containers[].securityContext.runAsGroup
spec.containers[].securityContext.runAsNonRoot spec.containers[].securityContext.privileged
spec.containers[].securityContext.capabilities spec.containers[].securityContext.readOnlyRootFilesystem
spec.containers[].securityContext.allowPrivilegeEscalation spec.containers[].securityContext.procMount
spec.containers[].securityContext.seccompProfile spec.containers[].securityContext.appArmorProfile
spec.containers[].securityContext.seLinuxOptions
`

// ignored lists fields that concern the choice of a node, or what only an API server
// has. They are noted and change nothing here.
const ignored = `
spec.affinity spec.nodeSelector spec.nodeName spec.schedulerName spec.schedulingGates spec.schedulingGroup
spec.tolerations spec.topologySpreadConstraints spec.priorityClassName spec.priority spec.preemptionPolicy
spec.evictionResponders spec.readinessGates
spec.serviceAccountName spec.serviceAccount spec.automountServiceAccountToken spec.enableServiceLinks
spec.volumes[].ephemeral.volumeClaimTemplate.spec.storageClassName
spec.volumes[].ephemeral.volumeClaimTemplate.spec.volumeAttributesClassName
metadata.generateName metadata.finalizers metadata.ownerReferences
`

// quiet lists what the API server fills in, by field and value, so that the output of
// `kubectl get -o yaml` gives no notes; - stands for any value.
const quiet = `
spec.schedulerName default-scheduler
spec.enableServiceLinks -
spec.automountServiceAccountToken -
spec.serviceAccountName default
spec.serviceAccount -
spec.preemptionPolicy PreemptLowerPriority
spec.priority 0
spec.volumes[].ephemeral.volumeClaimTemplate.metadata.labels -
spec.volumes[].ephemeral.volumeClaimTemplate.metadata.annotations -
spec.volumes[].ephemeral.volumeClaimTemplate.metadata.creationTimestamp -
spec.volumes[].ephemeral.volumeClaimTemplate.spec.accessModes -
spec.volumes[].ephemeral.volumeClaimTemplate.spec.resources -
spec.volumes[].ephemeral.volumeClaimTemplate.spec.volumeMode Filesystem
metadata.creationTimestamp -
metadata.resourceVersion -
metadata.generation -
metadata.selfLink -
metadata.managedFields -
metadata.ownerReferences -
metadata.generateName -
`

// reasons say more of fields that are refused than that they are.
func reasons() map[string]string {
	return map[string]string{
		"spec.volumes[].projected.sources[].serviceAccountToken": "a token comes from an API server, and there is none",
		"spec.volumes[].projected.sources[].clusterTrustBundle":  "a trust bundle comes from an API server, and there is none",
		"spec.volumes[].projected.sources[].podCertificate":      "a certificate comes from an API server, and there is none",
		"spec.securityContext.windowsOptions":                    "this is Linux",
		"spec.containers[].securityContext.windowsOptions":       "this is Linux",
		"spec.containers[].volumeDevices":                        "block volumes come from a storage driver, and there is none",
		"spec.resourceClaims":                                    "devices of claims come from a cluster's drivers; see `cdi` in docs/running.md",
		"spec.containers[].resources.claims":                     "devices of claims come from a cluster's drivers",
		"spec.ephemeralContainers":                               "they are added to a pod that runs: use `berth pod exec`",
	}
}

// fields are the lists, ready to be asked.
type fields struct {
	honoured, ignored map[string]bool
	quiet             map[string][]string
	reasons           map[string]string
	// inner are the proper prefixes of all of them.
	inner map[string]bool
	place place
	notes *notes
	// found are the faults.
	found faults
}

func parseFields(l lists, at place, n *notes) *fields {
	f := &fields{
		honoured: map[string]bool{}, ignored: map[string]bool{}, quiet: map[string][]string{}, reasons: l.reasons,
		inner: map[string]bool{}, place: at, notes: n, found: faults{place: at},
	}
	for _, path := range strings.Fields(l.honoured) {
		f.honoured[path] = true
		f.addInner(path)
	}
	for _, path := range strings.Fields(l.ignored) {
		f.ignored[path] = true
		f.addInner(path)
	}
	for line := range strings.Lines(strings.TrimSpace(l.quiet)) {
		line = strings.TrimSpace(line)
		path, value, _ := strings.Cut(line, " ")
		f.quiet[path] = append(f.quiet[path], value)
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

// checkHonoured reports every field of a pod that is not honoured, and notes those that
// are ignored. A template's name and namespace are its maker's affair.
func checkHonoured(tree map[string]any, at place, isTemplate bool, n *notes) error {
	f := parseFields(podLists(), at, n)
	if isTemplate {
		delete(tree, "status")
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		f.check(name, name, tree[name])
	}
	return f.found.err()
}

// check looks at one field: path as it is written, rule as the lists spell it.
func (f *fields) check(path, rule string, value any) {
	rule = strings.Replace(rule, "spec.initContainers", "spec.containers", 1)
	if f.honoured[rule] || isNothing(value) || rule == "status" || f.isQuiet(rule, value) {
		return
	}
	if f.ignored[rule] {
		f.notes.field(f.place.line(path), f.place.prefix+path)
		return
	}
	if !f.inner[rule] {
		why := "this field is not honoured"
		if more := f.reasons[rule]; more != "" {
			why += ": " + more
		}
		f.found.add(path, "%s", why)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			f.check(path+"."+name, rule+"."+name, v[name])
		}
	case []any:
		for i, item := range v {
			inner, ok := item.(map[string]any)
			if !ok {
				continue // the strict decoder has refused it
			}
			for _, name := range slices.Sorted(maps.Keys(inner)) {
				f.check(fmt.Sprintf("%s[%d].%s", path, i, name), rule+"[]."+name, inner[name])
			}
		}
	}
}

func (f *fields) isQuiet(rule string, value any) bool {
	allowed := f.quiet[rule]
	return slices.Contains(allowed, "-") || slices.Contains(allowed, fmt.Sprint(value))
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
