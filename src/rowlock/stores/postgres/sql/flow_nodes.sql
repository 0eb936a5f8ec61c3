SELECT nodes::text FROM {schema}._jobs_flows WHERE id = $1::uuid
