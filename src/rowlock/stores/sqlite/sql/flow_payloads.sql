SELECT j.id, j.payload FROM json_each(?) s CROSS JOIN _jobs j ON j.id = s.value
