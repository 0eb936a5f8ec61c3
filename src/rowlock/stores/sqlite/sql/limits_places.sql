SELECT j.n FROM json_each(?) i CROSS JOIN _jobs j ON j.id = i.value
