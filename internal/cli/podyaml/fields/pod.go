package fields

func podLists() lists {
	return lists{honoured: honoured, ignored: ignored, serverDefaults: serverDefaults, reasons: reasons()}
}

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

// serverDefaults lists what the API server fills in, by field and value, so that the output of
// `kubectl get -o yaml` gives no notes; - stands for any value.
const serverDefaults = `
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

// reasons explain why fields are refused.
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
