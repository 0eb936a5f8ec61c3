SELECT {columns} FROM {schema}._jobs_all j WHERE j.id = ANY ($1::uuid[])
