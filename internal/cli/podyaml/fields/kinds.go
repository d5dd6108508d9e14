package fields

// everyKind is honoured in all documents but pods, whose metadata has its own lists.
const everyKind = "apiVersion kind metadata "

// updates are the fields for replacing the pods of a controller, which berth does not do.
const updates = `
spec.strategy.type spec.strategy.rollingUpdate
spec.updateStrategy.type spec.updateStrategy.rollingUpdate
spec.revisionHistoryLimit spec.progressDeadlineSeconds spec.minReadySeconds
`

const updateDefaults = `
spec.strategy.type RollingUpdate
spec.strategy.rollingUpdate map[maxSurge:25% maxUnavailable:25%]
spec.updateStrategy.type RollingUpdate
spec.updateStrategy.rollingUpdate map[partition:0]
spec.updateStrategy.rollingUpdate map[maxSurge:0 maxUnavailable:1]
spec.revisionHistoryLimit 10
spec.progressDeadlineSeconds 600
spec.minReadySeconds 0
`

// kindLists are the lists of each kind of document that is no pod. What is below
// spec.template is checked as a pod.
func kindLists() map[string]lists {
	const replicas = everyKind + "spec.replicas spec.selector spec.template "
	return map[string]lists{
		"apps/v1 Deployment":       {honoured: replicas + "spec.paused", ignored: updates, serverDefaults: updateDefaults},
		"apps/v1 ReplicaSet":       {honoured: replicas, ignored: updates, serverDefaults: updateDefaults},
		"v1 ReplicationController": {honoured: replicas, ignored: updates, serverDefaults: updateDefaults},
		"apps/v1 DaemonSet":        {honoured: everyKind + "spec.selector spec.template", ignored: updates, serverDefaults: updateDefaults},
		"apps/v1 StatefulSet":      statefulLists(replicas),
		"batch/v1 Job":             jobLists(),
		"v1 Service":               serviceLists(),
		"v1 ConfigMap":             {honoured: everyKind + "data binaryData", serverDefaults: "immutable -"},
		"v1 Secret":                {honoured: everyKind + "data stringData", serverDefaults: "immutable -\ntype -"},
		"v1 PersistentVolumeClaim": claimLists(),
		"v1 PersistentVolume":      volumeLists(),
	}
}

func statefulLists(replicas string) lists {
	return lists{
		honoured: replicas + `spec.serviceName spec.podManagementPolicy spec.ordinals.start spec.minReadySeconds
spec.volumeClaimTemplates[].metadata.name`,
		ignored: updates + `spec.persistentVolumeClaimRetentionPolicy.whenDeleted spec.persistentVolumeClaimRetentionPolicy.whenScaled
spec.volumeClaimTemplates[].spec.storageClassName spec.volumeClaimTemplates[].spec.volumeAttributesClassName`,
		// The directory of a claim stays, and is as large as its file system.
		serverDefaults: updateDefaults + `spec.persistentVolumeClaimRetentionPolicy.whenDeleted Retain
spec.persistentVolumeClaimRetentionPolicy.whenScaled Retain
spec.volumeClaimTemplates[].apiVersion -
spec.volumeClaimTemplates[].kind -
spec.volumeClaimTemplates[].metadata.namespace -
spec.volumeClaimTemplates[].metadata.labels -
spec.volumeClaimTemplates[].metadata.annotations -
spec.volumeClaimTemplates[].metadata.creationTimestamp -
spec.volumeClaimTemplates[].status -
spec.volumeClaimTemplates[].spec.accessModes -
spec.volumeClaimTemplates[].spec.resources -
spec.volumeClaimTemplates[].spec.volumeMode Filesystem
`,
		reasons: map[string]string{
			"spec.volumeClaimTemplates[].spec.dataSource":    "what fills a volume is a driver of a cluster, and there is none",
			"spec.volumeClaimTemplates[].spec.dataSourceRef": "what fills a volume is a driver of a cluster, and there is none",
		},
	}
}

func jobLists() lists {
	return lists{
		honoured: everyKind + `spec.parallelism spec.completions spec.activeDeadlineSeconds spec.backoffLimit spec.template
spec.completionMode spec.suspend`,
		ignored: "spec.ttlSecondsAfterFinished spec.scheduling",
		// A pod of a Job runs again when the one before it has ended, whatever the policy.
		serverDefaults: "spec.selector -\nspec.manualSelector -\nspec.podReplacementPolicy -\n",
	}
}

func serviceLists() lists {
	return lists{
		honoured: everyKind + `spec.selector
spec.ports[].name spec.ports[].protocol spec.ports[].port spec.ports[].targetPort`,
		ignored: `
spec.type spec.externalName spec.externalIPs spec.ports[].nodePort spec.sessionAffinity spec.sessionAffinityConfig
spec.loadBalancerIP spec.loadBalancerSourceRanges spec.loadBalancerClass spec.trafficDistribution
`,
		// Addresses are in the hosts files whether their pods are ready or not.
		serverDefaults: `
spec.publishNotReadyAddresses -
spec.type ClusterIP
spec.sessionAffinity None
spec.clusterIP -
spec.clusterIPs -
spec.ipFamilies -
spec.ipFamilyPolicy -
spec.internalTrafficPolicy -
spec.externalTrafficPolicy -
spec.allocateLoadBalancerNodePorts -
spec.healthCheckNodePort -
spec.ports[].appProtocol -
`,
	}
}

func claimLists() lists {
	return lists{
		honoured:       everyKind + "spec.volumeName spec.storageClassName spec.volumeMode spec.selector spec.resources.requests",
		ignored:        "spec.resources.limits spec.volumeAttributesClassName",
		serverDefaults: "spec.accessModes -\n",
		reasons: map[string]string{
			"spec.dataSource":    "what fills a volume is a driver of a cluster, and there is none",
			"spec.dataSourceRef": "what fills a volume is a driver of a cluster, and there is none",
		},
	}
}

func volumeLists() lists {
	return lists{
		honoured: everyKind + `spec.capacity spec.hostPath.path spec.local.path spec.claimRef.name spec.claimRef.namespace
spec.storageClassName spec.volumeMode`,
		// The directory is made where it is missing, and stays.
		ignored: `spec.nodeAffinity spec.volumeAttributesClassName spec.persistentVolumeReclaimPolicy spec.hostPath.type
spec.local.fsType`,
		serverDefaults: `spec.accessModes -
spec.persistentVolumeReclaimPolicy Retain
spec.hostPath.type DirectoryOrCreate
spec.hostPath.type
spec.claimRef.apiVersion -
spec.claimRef.kind -
spec.claimRef.uid -
spec.claimRef.resourceVersion -
spec.claimRef.fieldPath -
`,
	}
}
